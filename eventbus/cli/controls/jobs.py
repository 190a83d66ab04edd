"""`eventbus jobs`: counts, lists and shows the jobs of a queue, and changes one that waits or cancels it.

The commands need no program, because they read only the server. A payload that is replaced here is checked by
the worker; in a program, `replace_payload` checks it before.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, cast, get_args

import msgspec
import typer

from eventbus.admin.jobs.job_report import JobReport
from eventbus.admin.jobs.jobs import JobList
from eventbus.admin.jobs.reasons import StateReason
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.job_views import print_counts, print_jobs, print_report
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.controls.watching import look
from eventbus.cli.listing import show_found
from eventbus.cli.options import GroupOption, JobArgument, JsonOption, UrlOption, WatchOption
from eventbus.cli.output import say, write_json
from eventbus.cli.times import in_local_time
from eventbus.cli.toolkit import CommandError, ask_server, printable, shown
from eventbus.model.states import JobState
from eventbus.provider import EventProvider

app: typer.Typer = typer.Typer(help="Look at jobs, change those that wait, cancel one.")

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="An event, NAME@GROUP, or a queue: workflow.checkout.")
]


@app.command("count")
def count(
    name: _Name,
    *,
    group: GroupOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> None:
    """Count the jobs of a queue in each state."""
    queue = queue_of(name, group)

    async def ask(provider: EventProvider) -> dict[str, int]:
        counts = await provider.inspector.queues.count(queue)
        if not any(counts.values()):
            await check_known(provider, queue)
        return counts

    look(url, ask, print_counts, as_json=as_json, watch=watch)


@app.command("list")
def list_jobs(
    name: _Name,
    *,
    group: GroupOption = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Of this state, by default waiting; with commas or repeated: several."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="So many.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="What the page before said.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="That ended within this time: 90s, '2 hours'.")
    ] = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> None:
    """List jobs of one state, or of several: waiting ones in the order of their turns, delayed ones by
    their time, others newest first.
    """
    given = [each.strip() for text in state or ["waiting"] for each in text.split(",") if each.strip()]
    known = get_args(JobState)
    if wrong := [each for each in given if each not in known] or ([""] if not given else []):
        raise CommandError(f"expected --state to be one of {', '.join(known)}, got: {shown(wrong[0])}")
    queue, chosen = queue_of(name, group), cast("list[JobState]", given)

    async def ask(provider: EventProvider) -> JobList:
        found = await provider.inspector.jobs.list(
            queue, state=chosen, limit=limit, cursor=cursor, since=since
        )
        if not found.jobs:
            await check_known(provider, queue)
        return found

    def show(found: JobList) -> None:
        show_found(found.jobs, lambda jobs: print_jobs(jobs, chosen), as_json=as_json)
        if found.cursor is not None:
            say(f"more: --cursor {found.cursor}", err=True)

    look(url, ask, show, watch=watch)


@app.command("show")
def show(
    job_id: JobArgument,
    *,
    full: Annotated[bool, typer.Option("--full", help="Whole payloads, results and tracebacks.")] = False,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show also what is marked as sensitive.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show one job: where it is, its times, its payload and result, and what failed."""

    async def ask(provider: EventProvider) -> tuple[JobReport, StateReason]:
        jobs = provider.inspector.jobs
        return await jobs.get(job_id, reveal=reveal), await jobs.why(job_id)

    report, reason = ask_server(url, ask, reads_only=True)
    if as_json:
        write_json(report)
    else:
        print_report(report, reason, is_full=full)


@app.command("why")
def why(job_id: JobArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Say why a job is in its state: what keeps it from running, who runs it, or that it has ended; and its
    last error.
    """

    async def ask(provider: EventProvider) -> tuple[StateReason, str]:
        reason = await provider.inspector.jobs.why(job_id)
        if as_json or reason.kind not in ("ended", "retry"):
            return reason, ""
        job = await provider.inspector.jobs.get(job_id)
        return reason, job.error or (job.errors[-1] if reason.kind == "retry" and job.errors else "")

    reason, error = ask_server(url, ask, reads_only=True)
    if as_json:
        write_json(reason)
        return
    say(printable(in_local_time(reason.text)))
    if error:
        say(printable(error))


@app.command("cancel")
def cancel(
    job_id: JobArgument,
    *,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Told to whoever awaits the job.")] = "",
    url: UrlOption = None,
) -> None:
    """Cancel a job with the jobs of its groups. One that runs is stopped within a second."""
    change_job(
        url,
        job_id,
        lambda provider: provider.inspector.jobs.cancel(job_id, reason),
        done="is cancelled, or is being stopped",
        refused="there is nothing to cancel",
    )


@app.command("promote")
def promote(job_id: JobArgument, *, url: UrlOption = None) -> None:
    """Let a delayed job wait for its turn now, also one that is delayed between two attempts."""
    change_job(
        url,
        job_id,
        lambda provider: provider.inspector.jobs.promote(job_id),
        done="is due now",
        refused="only a delayed job is promoted",
    )


@app.command("delay")
def delay(
    job_id: JobArgument,
    time: Annotated[str, typer.Argument(metavar="TIME", help="From now: 90s, 10m, '2 hours'.")],
    *,
    url: UrlOption = None,
) -> None:
    """Let a job that waits, or is delayed, be due after a time from now."""
    change_job(
        url,
        job_id,
        lambda provider: provider.inspector.jobs.delay(job_id, time),
        done=f"is due in {time}",
        refused="only a job that waits or is delayed can be put off",
    )


@app.command("prioritize", context_settings={"ignore_unknown_options": True})  # -5 is none
def prioritize(
    job_id: JobArgument,
    priority: Annotated[int, typer.Argument(metavar="NUMBER", help="-4000 to 4000, lower ones first.")],
    *,
    url: UrlOption = None,
) -> None:
    """Give a job that waits, or is delayed, another priority. It goes to the end of that."""
    change_job(
        url,
        job_id,
        lambda provider: provider.inspector.jobs.prioritize(job_id, priority),
        done=f"has priority {priority}",
        refused="only a job that waits or is delayed has a place to change",
    )


@app.command("edit")
def edit(
    job_id: JobArgument,
    *,
    payload: Annotated[str, typer.Option(metavar="JSON", help="The whole new payload; - reads it.")],
    revision: Annotated[
        str | None, typer.Option(help="Only if the job is as `jobs show --json` has told it by this.")
    ] = None,
    url: UrlOption = None,
) -> None:
    """Replace the payload of a job of an event that waits, is delayed or parked. Its key and meta
    data stay.
    """
    given = read_json(payload)
    edited = ask_server(url, lambda provider: provider.inspector.jobs.edit(job_id, given, revision=revision))
    if edited.differences:
        said = f"job {job_id} was changed meanwhile: {', '.join(edited.differences)}; nothing was edited"
        raise CommandError(f"{said}; look at it again", exit_code=1)
    if not edited.changed:
        said = f"job {job_id} is {edited.state}"
        raise CommandError(f"{said}; only one that waits, is delayed or parked can be edited", exit_code=1)
    say(f"job {job_id} has another payload")


def read_json(text: str) -> object:
    """Return the JSON of an option, or of standard input for `-`. Raises CommandError."""
    text = sys.stdin.read() if text == "-" else text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CommandError(
            f"expected the payload to be JSON, such as '{{\"n\": 1}}' in quotes, got: {shown(text)}: {error}"
        ) from None


def change_job(
    url: str | None,
    job_id: str,
    change: Callable[[EventProvider], Awaitable[bool]],
    *,
    done: str,
    refused: str,
) -> None:
    """Change a job, and say what became of that. If its state does not allow it, the command fails with the
    state.
    """

    async def ask(provider: EventProvider) -> str:
        if await change(provider):
            return ""
        return (await provider.inspector.jobs.get(job_id)).state

    state = ask_server(url, ask)
    if state:
        raise CommandError(f"job {job_id} is {state}; {refused}", exit_code=1)
    say(f"job {job_id} {done}")
