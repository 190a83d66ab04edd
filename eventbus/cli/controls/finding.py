"""`eventbus jobs find`: jobs by their idempotency key, their correlation id, or a field of their payload."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from eventbus.admin.jobs.field_search import FieldMatches
from eventbus.admin.jobs.lookups import FoundJob, FoundJobs
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.controls.watching import look
from eventbus.cli.listing import Listing, Row
from eventbus.cli.options import JsonOption, UrlOption
from eventbus.cli.output import say, tell_old_name
from eventbus.cli.toolkit import CommandError, moment
from eventbus.provider import EventProvider


def find(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of this event with its groups.")
    ] = None,
    *,
    key: Annotated[str | None, typer.Option(help="The idempotency key, as it was emitted.")] = None,
    correlation_id: Annotated[
        str | None, typer.Option("--correlation-id", help="The id of the chain: jobs and flows.")
    ] = None,
    old_correlation: Annotated[str | None, typer.Option("--correlation", hidden=True)] = None,
    field: Annotated[
        str | None, typer.Option(metavar="FIELD:VALUE", help="Of the payload: order_id:7, customer.name:Ada.")
    ] = None,
    state: Annotated[str, typer.Option(help="Of jobs that --field looks for.")] = "waiting",
    cursor: Annotated[str | None, typer.Option(help="Go on behind what --field has seen.")] = None,
    as_json: JsonOption = False,
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
    queue = "" if name is None else queue_of(name)
    if field is not None and (not queue or key is not None or correlation_id is not None):
        raise CommandError("--field needs the NAME of an event, and neither --key nor --correlation-id")

    async def ask(provider: EventProvider) -> FoundJobs | FieldMatches:
        jobs = provider.inspector.jobs
        if field is None:
            found = await jobs.find(queue or None, idempotency_key=key, correlation_id=correlation_id)
        else:
            found = await jobs.find_by_field(queue, field, state=state, cursor=cursor)
        if queue and not found.jobs:
            await check_known(provider, queue, with_groups=True)
        return found

    look(url, ask, partial(_print, state=state), as_json=as_json)


def _print(found: FoundJobs | FieldMatches, state: str) -> None:
    _LISTING.print(found.jobs)
    if isinstance(found, FoundJobs):
        if not found.is_whole:
            say(f"{found.seen} jobs were looked at, and there are more; name an event", err=True)
    elif found.cursor is not None:
        more = f"and there are more: --cursor {found.cursor}"
        say(f"{found.seen} {state} jobs were looked at, {more}", err=True)


def _row(each: FoundJob) -> Row:
    times = (moment(each.created_ms), moment(each.ended_ms))
    return each.id, each.queue, each.state, *times, each.error


_LISTING = Listing(_row, "job, queue, state, emitted, ended, error", none="no job was found")
