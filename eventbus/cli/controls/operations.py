"""`eventbus operations`: bulk operations, which workers do; how far they are, and a stop.

They are begun by `eventbus jobs retry-all --background`, `eventbus jobs purge --background`, and on the
dashboard.
"""

from __future__ import annotations

from typing import Annotated

import typer

from eventbus.admin.operations import OperationReport
from eventbus.cli.controls.watching import look
from eventbus.cli.listing import Listing, Row
from eventbus.cli.options import JsonOption, LinesOption, UrlOption, WatchOption
from eventbus.cli.output import say
from eventbus.cli.toolkit import CommandError, ask_server, moment, printable
from eventbus.provider import EventProvider

app: typer.Typer = typer.Typer(help="Bulk operations: one action for many jobs, done by workers.")

_Operation = Annotated[str, typer.Argument(metavar="ID", help="The operation's id.")]


@app.command("list")
def list_operations(
    *,
    limit: Annotated[int, typer.Option(min=1, max=200, metavar="N", help="So many.")] = 20,
    as_json: LinesOption = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> None:
    """List the newest operations; they are kept for 7 days."""
    look(
        url,
        lambda provider: provider.inspector.operations.list(limit=limit),
        _LISTING.print,
        as_json=as_json,
        watch=watch,
    )


@app.command("show")
def show(
    operation: _Operation, *, as_json: JsonOption = False, watch: WatchOption = False, url: UrlOption = None
) -> None:
    """Show how far one operation is."""
    look(
        url,
        lambda provider: provider.inspector.operations.get(operation),
        _print,
        as_json=as_json,
        watch=watch,
    )


@app.command("stop")
def stop(
    operation: _Operation,
    *,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Kept beside it.")] = "",
    url: UrlOption = None,
) -> None:
    """Let an operation do no more than the 100 jobs that are under way. What is done stays done."""

    async def ask(provider: EventProvider) -> str:
        if await provider.inspector.operations.stop(operation, by):
            return ""
        return (await provider.inspector.operations.get(operation)).state

    state = ask_server(url, ask)
    if state:
        raise CommandError(f"operation {operation} is {state}; there is nothing to stop", exit_code=1)
    say(f"operation {operation} does no more")


def _row(each: OperationReport) -> Row:
    texts = (each.id, _what(each), each.queue, each.state)
    counts = (each.done, each.failed, _total(each))
    return *texts, *counts, moment(each.began_ms), each.by, each.reason


_LISTING = Listing(
    _row,
    "operation, what, queue, state, >done, >failed, >of, began, by, reason",
    none="no operation was begun in the last days",
)


def _print(found: OperationReport) -> None:
    lines = {
        "operation": found.id,
        "what": f"{_what(found)} jobs of {found.queue}",
        "error": found.error,
        "state": found.state,
        "problem": found.problem,
        "done": str(found.done),
        "failed": f"{found.failed} (their state did not allow it)" if found.failed else "0",
        "of": _total(found),
        "began": moment(found.began_ms),
        "ended": moment(found.ended_ms) if found.ended_ms else "",
        "by": found.by,
        "reason": found.reason,
        "stopped by": found.stopped_by,
    }
    for name, text in lines.items():
        if text:
            say(f"{name:<11} {printable(text)}")


def _what(found: OperationReport) -> str:
    return f"{found.action} {found.job_state or 'named'}"


def _total(found: OperationReport) -> str:
    return "more than 10,000" if found.total is None else str(found.total)
