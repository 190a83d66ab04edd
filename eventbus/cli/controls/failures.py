"""`eventbus jobs failures`: failed jobs by their error."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from eventbus.admin.jobs.failures import FailureGroup
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.controls.watching import WatchOption, look
from eventbus.cli.output import say, write_lines
from eventbus.cli.toolkit import UrlOption, moment, open_console, printable, tell_asked
from eventbus.provider import EventProvider

__all__ = ["failures"]


def failures(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of this event with its groups, or queue.")
    ] = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, an object on a line for each.")
    ] = False,
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

    look(url, ask, write_lines if as_json else _print, watch=watch)


def _print(found: list[FailureGroup]) -> None:
    if not found:
        say("no job has failed")
        tell_asked()
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("jobs", no_wrap=True, justify="right")
    for head in ("queue", "newest", "oldest", "sample"):
        table.add_column(head, no_wrap=True)
    table.add_column("error", no_wrap=True, overflow="ellipsis")
    for each in found:
        cells = (each.queue, moment(each.newest_ms), moment(each.oldest_ms), each.sample, each.error)
        table.add_row(str(each.count), *(Text(printable(cell)) for cell in cells))
    open_console().print(table)
