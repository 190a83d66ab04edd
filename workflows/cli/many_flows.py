"""`eventbus flows retry-all` and `cancel-all`: many flows by workflow, state, error and age. They count
first, and ask.

The commands need no program. They go on a part at a time; if one is cut off, the same command does the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import typer

from eventbus.cli.toolkit import DryRunOption, UrlOption, YesOption, agree, say, tell_asked
from workflows import FlowsChange, WorkflowProvider
from workflows.cli.asking import ask_flows, check_known_workflow

_Workflow = Annotated[
    str | None, typer.Argument(metavar="[WORKFLOW]", help="Of this workflow; without one, of all.")
]
_Error = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="TEXT", help="With this error alone: as `flows list` has it, or its type."
    ),
]

_Change = Callable[..., Awaitable[FlowsChange]]


def retry_all(
    workflow: _Workflow = None,
    *,
    state: Annotated[
        str,
        typer.Option(
            metavar="STATE", help="failed, cancelled, or waiting: machines that stand with an error."
        ),
    ] = "failed",
    error: _Error = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="That ended so long ago: 7d, '2 hours'."),
    ] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Run all their steps again.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    url: UrlOption = None,
) -> int:
    """Retry all failed flows of a workflow, or those with one error. Counts them, and asks first."""
    options: dict[str, Any] = {"state": state, "error": error, "older_than": older_than}
    resume = False if from_start else None

    def choose(flows: WorkflowProvider) -> _Change:
        async def retry(name: str | None, **more: Any) -> FlowsChange:
            return await flows.retry_all(name, resume=resume, **more)

        return retry

    return _run(choose, workflow, options, state, "retry", "retried", dry_run=dry_run, yes=yes, url=url)


def cancel_all(
    workflow: _Workflow = None,
    *,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="pending, running or waiting; by default all that are open."),
    ] = None,
    error: _Error = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="That were started so long ago: 7d, '2 hours'."),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Told to whoever waits for them.")] = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    url: UrlOption = None,
) -> int:
    """Cancel all open flows of a workflow, and have what they did rolled back. Counts them, and asks
    first.
    """
    options: dict[str, Any] = {"state": state, "error": error, "older_than": older_than}

    def choose(flows: WorkflowProvider) -> _Change:
        async def cancel(name: str | None, **more: Any) -> FlowsChange:
            return await flows.cancel_all(name, reason=reason, **more)

        return cancel

    return _run(
        choose, workflow, options, state or "open", "cancel", "cancelled", dry_run=dry_run, yes=yes, url=url
    )


def _run(
    choose: Callable[[WorkflowProvider], _Change],
    workflow: str | None,
    options: dict[str, Any],
    state: str,
    verb: str,
    done: str,
    *,
    dry_run: bool,
    yes: bool,
    url: str | None,
) -> int:
    async def count(flows: WorkflowProvider) -> tuple[int, int]:
        """Return how many flows are meant, and the time up to which they count."""
        found, before = 0, 0
        async for change in _pages(choose(flows), workflow, {**options, "dry_run": True}):
            found, before = found + change.count, change.before
        if not found:
            await check_known_workflow(flows, workflow)
        return found, before

    async def act(flows: WorkflowProvider) -> tuple[int, int]:
        changed = refused = 0
        async for change in _pages(choose(flows), workflow, {**options, "before": before}):
            changed, refused = changed + change.count, refused + change.refused
        return changed, refused

    found, before = ask_flows(url, count, reads_only=True)
    of = f" of {workflow}" if workflow is not None else ""
    if dry_run or not found:
        say(f"{_flows(found, state)}{of} would be {done}")
        if not found:
            tell_asked()
    elif yes or agree(f"{verb} {_flows(found, state)}{of}?"):
        changed, refused = ask_flows(url, act)
        more = f"; {refused} did not allow it any more" if refused else ""
        say(f"{_flows(changed, state)}{of} {done}{more}")
    return 0


async def _pages(
    change: _Change, workflow: str | None, options: dict[str, Any]
) -> AsyncIterator[FlowsChange]:
    """Yield what each call did, until there is no more."""
    cursor = ""
    while True:
        found = await change(workflow, cursor=cursor, **options)
        yield found
        cursor, options = found.cursor, {**options, "before": found.before}
        if not cursor:
            return


def _flows(count: int, state: str) -> str:
    return f"{count} {state} flow{'' if count == 1 else 's'}"
