"""`eventbus operations`: bulk operations, which workers do; how far they are, and a stop.

They are begun by `eventbus jobs retry-all --background`, `eventbus jobs purge --background`, and on the
dashboard.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from eventbus.admin.operations import OperationReport
from eventbus.cli.controls.watching import WatchOption, look
from eventbus.cli.output import say, write_json, write_lines
from eventbus.cli.toolkit import (
    CommandError,
    UrlOption,
    ask_server,
    moment,
    open_console,
    printable,
    tell_asked,
)
from eventbus.provider import EventProvider

__all__ = ["app"]

app: typer.Typer = typer.Typer(help="Bulk operations: one action for many jobs, done by workers.")

_Operation = Annotated[str, typer.Argument(metavar="ID", help="The operation's id.")]


@app.command("list")
def list_operations(
    *,
    limit: Annotated[int, typer.Option(min=1, max=200, metavar="N", help="So many.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, an object on a line for each.")
    ] = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> None:
    """List the newest operations; they are kept for 7 days."""

    async def ask(provider: EventProvider) -> list[OperationReport]:
        return await provider.inspector.operations.list(limit=limit)

    look(url, ask, write_lines if as_json else _print_all, watch=watch)


@app.command("show")
def show(
    operation: _Operation,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> None:
    """Show how far one operation is."""

    async def ask(provider: EventProvider) -> OperationReport:
        return await provider.inspector.operations.get(operation)

    look(url, ask, write_json if as_json else _print, watch=watch)


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


def _print_all(found: list[OperationReport]) -> None:
    if not found:
        say("no operation was begun in the last days")
        tell_asked()
        return
    table = Table(box=None, pad_edge=False)
    for head in ("operation", "what", "queue", "state"):
        table.add_column(head, no_wrap=True)
    for head in ("done", "failed", "of"):
        table.add_column(head, no_wrap=True, justify="right")
    for head in ("began", "by"):
        table.add_column(head, no_wrap=True)
    table.add_column("reason", no_wrap=True, overflow="ellipsis")
    for each in found:
        texts = (each.id, _what(each), each.queue, each.state)
        counts = (str(each.done), str(each.failed), _total(each))
        cells = (*texts, *counts, moment(each.began_ms), each.by, each.reason)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    open_console().print(table)


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
