"""`eventbus jobs retry`, `remove`, `retry-all` and `purge`: jobs of events run again, or go.

Those that change many jobs count them first and ask, unless `--yes` is given. The commands need no program.
"""

from __future__ import annotations

from typing import Annotated, cast

import typer

from eventbus.admin.jobs.retrials import PurgedState, RetriedState
from eventbus.admin.operations import OperationReport
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.jobs import change_job
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.options import DryRunOption, GroupOption, JobArgument, UrlOption, YesOption
from eventbus.cli.output import say
from eventbus.cli.toolkit import agree, ask_server
from eventbus.provider import EventProvider

_Name = Annotated[str, typer.Argument(metavar="NAME", help="An event, or NAME@GROUP.")]
_Error = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="With this error alone: as `failures` has it, or its type."),
]
_Background = Annotated[
    bool, typer.Option("--background", help="Let workers do it; see eventbus operations.")
]


def retry(
    job_id: JobArgument,
    *,
    rerun: Annotated[bool, typer.Option("--rerun", help="Also one that completed.")] = False,
    url: UrlOption = None,
) -> None:
    """Let a job that failed, expired or was cancelled run again, with all its attempts before it."""
    change_job(
        url,
        job_id,
        lambda provider: provider.inspector.jobs.retry(job_id, rerun=rerun),
        done="waits for its turn again",
        refused="only one that failed or was cancelled is retried, and with --rerun one that completed",
    )


def remove(job_id: JobArgument, *, url: UrlOption = None) -> None:
    """Remove a job that nobody runs. One that waits is cancelled, and whoever awaits it is told."""
    change_job(
        url,
        job_id,
        lambda provider: provider.inspector.jobs.remove(job_id),
        done="is removed",
        refused="cancel it first: eventbus jobs cancel",
    )


def retry_all(
    name: _Name,
    *,
    group: GroupOption = None,
    state: Annotated[str, typer.Option(metavar="STATE", help="failed or cancelled.")] = "failed",
    error: _Error = None,
    dry_run: DryRunOption = False,
    background: _Background = False,
    yes: YesOption = False,
    url: UrlOption = None,
) -> None:
    """Let all failed jobs of an event run again, or those with one error. Counts them, and asks first."""
    queue, chosen = queue_of(name, group), cast("RetriedState", state)

    async def count(provider: EventProvider) -> int:
        found = await provider.inspector.queues.retry_all(queue, chosen, error, dry_run=True)
        return found or await _none_of(provider, queue)

    async def act(provider: EventProvider) -> str:
        if background:
            return _begun(await provider.inspector.operations.begin("retry", queue, chosen, error=error))
        retried = await provider.inspector.queues.retry_all(queue, chosen, error)
        return f"{_jobs(retried, state)} of {queue} wait again"

    found = ask_server(url, count, reads_only=True)
    if dry_run or not found:
        say(f"{_jobs(found, state)} of {queue} would be retried")
    elif yes or agree(f"retry {_jobs(found, state)} of {queue}?"):
        say(ask_server(url, act))


def purge(
    name: _Name,
    *,
    group: GroupOption = None,
    state: Annotated[
        str, typer.Option(metavar="STATE", help="failed, cancelled, completed, waiting, delayed or parked.")
    ] = "failed",
    error: _Error = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="That ended so long ago: 7d, '2 hours'."),
    ] = None,
    dry_run: DryRunOption = False,
    background: _Background = False,
    yes: YesOption = False,
    url: UrlOption = None,
) -> None:
    """Remove all jobs of an event in one state, or those with one error. Counts them, and asks first."""
    queue, chosen = queue_of(name, group), cast("PurgedState", state)

    async def count(provider: EventProvider) -> int:
        found = await provider.inspector.queues.purge(
            queue, chosen, error, older_than=older_than, dry_run=True
        )
        return found or await _none_of(provider, queue)

    async def act(provider: EventProvider) -> str:
        asked = provider.inspector
        if background:
            return _begun(
                await asked.operations.begin("remove", queue, chosen, error=error, older_than=older_than)
            )
        removed = await asked.queues.purge(queue, chosen, error, older_than=older_than)
        return f"{_jobs(removed, state)} of {queue} removed"

    found = ask_server(url, count, reads_only=True)
    if dry_run or not found:
        say(f"{_jobs(found, state)} of {queue} would be removed")
    elif yes or agree(f"remove {_jobs(found, state)} of {queue}?"):
        say(ask_server(url, act))


async def _none_of(provider: EventProvider, queue: str) -> int:
    """Return 0 for a queue that is known. Raises CommandError for another one."""
    await check_known(provider, queue)
    return 0


def _begun(report: OperationReport) -> str:
    return f"workers do it: eventbus operations show {report.id}"


def _jobs(count: int, state: str) -> str:
    return f"{count} {state} job{'' if count == 1 else 's'}"
