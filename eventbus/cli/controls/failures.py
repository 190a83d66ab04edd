"""`eventbus jobs failures`: failed jobs by their error."""

from __future__ import annotations

from typing import Annotated

import typer

from eventbus.admin.jobs.failures import FailureGroup
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.controls.watching import look
from eventbus.cli.listing import Listing, Row
from eventbus.cli.options import LinesOption, UrlOption, WatchOption
from eventbus.cli.times import moment
from eventbus.provider import EventProvider


def failures(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of this event with its groups, or queue.")
    ] = None,
    *,
    as_json: LinesOption = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> None:
    """List failed jobs by their error, the most frequent one first, each with one job as a sample."""
    queue = None if name is None else queue_of(name)

    async def ask(provider: EventProvider) -> list[FailureGroup]:
        found = await provider.inspector.queues.failures(queue)
        if queue is not None and not found:
            await check_known(provider, queue, with_groups=True)
        return found

    look(url, ask, _LISTING.print, as_json=as_json, watch=watch)


def _row(each: FailureGroup) -> Row:
    times = moment(each.newest_ms), moment(each.oldest_ms)
    return each.count, each.queue, *times, each.sample, each.error


_LISTING = Listing(_row, ">jobs, queue, newest, oldest, sample, error", none="no job has failed")
