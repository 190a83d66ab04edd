"""`eventbus jobs find`: jobs by their idempotency key, their correlation id, or a field of their payload."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from eventbus.admin.jobs.field_search import FieldMatches
from eventbus.admin.jobs.lookups import FoundJobs
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.output import say, tell_old_name, write_json
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

__all__ = ["find"]


def find(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of this event with its groups.")
    ] = None,
    *,
    key: Annotated[str | None, typer.Option(help="The idempotency key, as it was emitted.")] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option("--correlation-id", help="The id of the chain: jobs and flows."),
    ] = None,
    old_correlation: Annotated[str | None, typer.Option("--correlation", hidden=True)] = None,
    field: Annotated[
        str | None, typer.Option(metavar="FIELD:VALUE", help="Of the payload: order_id:7, customer.name:Ada.")
    ] = None,
    state: Annotated[str, typer.Option(help="Of jobs that --field looks for.")] = "waiting",
    cursor: Annotated[str | None, typer.Option(help="Go on behind what --field has seen.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    url: UrlOption = None,
) -> None:
    """Find jobs by idempotency key or a field of the payload (of one event), or by correlation id.

    Without NAME a correlation id is looked for in the jobs of all events and in all flows: first in open
    ones, then in the newest
    that ended, 20,000 in all. The jobs of steps are not among them.
    """
    if old_correlation is not None:
        tell_old_name("--correlation", "--correlation-id")
        correlation_id = old_correlation
    queue = None if name is None else queue_of(name)
    if field is not None:
        _find_by_field(
            url, queue, field, state, cursor, as_json=as_json, is_alone=key is None and correlation_id is None
        )
        return

    async def ask(provider: EventProvider) -> FoundJobs:
        found = await provider.inspector.jobs.find(queue, idempotency_key=key, correlation_id=correlation_id)
        if queue is not None and not found.jobs:
            await check_known(provider, queue, with_groups=True)
        return found

    found = ask_server(url, ask, reads_only=True)
    if as_json:
        write_json(found)
    else:
        _print(found)


def _find_by_field(
    url: str | None,
    queue: str | None,
    field: str,
    state: str,
    cursor: str | None,
    *,
    as_json: bool,
    is_alone: bool,
) -> None:
    if queue is None or not is_alone:
        raise CommandError("--field needs the NAME of an event, and neither --key nor --correlation-id")

    async def ask(provider: EventProvider) -> FieldMatches:
        found = await provider.inspector.jobs.find_by_field(queue, field, state=state, cursor=cursor)
        if not found.jobs:
            await check_known(provider, queue, with_groups=True)
        return found

    found = ask_server(url, ask, reads_only=True)
    if as_json:
        write_json(found)
        return
    _print(FoundJobs(jobs=found.jobs, seen=found.seen, is_whole=True))
    if found.cursor is not None:
        say(
            f"{found.seen} {state} jobs were looked at, and there are more: --cursor {found.cursor}",
            err=True,
        )


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
        say("no job was found")
        tell_asked()
    if not found.is_whole:
        say(f"{found.seen} jobs were looked at, and there are more; name an event", err=True)
