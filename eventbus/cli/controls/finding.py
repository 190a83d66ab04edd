"""`eventbus jobs find`: jobs by their idempotency key or their correlation id."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from eventbus.admin.lookups import FoundJobs
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.watching import write_json
from eventbus.cli.toolkit import UrlOption, ask_server, moment, open_console, printable
from eventbus.provider import EventProvider

__all__ = ["find"]


def find(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of this event with its groups.")
    ] = None,
    *,
    key: Annotated[str | None, typer.Option(help="The idempotency key, as it was emitted.")] = None,
    correlation_id: Annotated[
        str | None, typer.Option("--correlation-id", help="The id of the chain.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    url: UrlOption = None,
) -> None:
    """Find jobs by idempotency key (of one event), or by correlation id (of one event or of all)."""
    queue = None if name is None else queue_of(name)

    async def ask(provider: EventProvider) -> FoundJobs:
        return await provider.inspector.find(queue, idempotency_key=key, correlation_id=correlation_id)

    found = ask_server(url, ask)
    if as_json:
        write_json(found)
    else:
        _print(found)


def _print(found: FoundJobs) -> None:
    if found.jobs:
        table = Table(box=None, pad_edge=False)
        for head in ("job", "queue", "state", "emitted", "ended"):
            table.add_column(head, no_wrap=True)
        table.add_column("error", no_wrap=True, overflow="ellipsis")
        for each in found.jobs:
            cells = (
                each.id,
                each.queue,
                each.state,
                moment(each.created_ms),
                moment(each.ended_ms),
                each.error,
            )
            table.add_row(*(Text(printable(cell)) for cell in cells))
        open_console().print(table)
    else:
        print("no job was found")
    if not found.is_whole:
        print(f"{found.seen} jobs were looked at, and there are more; name an event", file=sys.stderr)
