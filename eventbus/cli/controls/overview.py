"""All queues and all workers: their listings, and the commands `eventbus workers` and `eventbus top`.

The commands need no program, because workers tell the server of themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.text import Text

from eventbus.admin.queues import QueueReport
from eventbus.admin.workers import WorkerReport
from eventbus.cli.controls.watching import look
from eventbus.cli.listing import Listing, Row
from eventbus.cli.options import LinesOption, UrlOption, WatchOption
from eventbus.cli.screen import open_console
from eventbus.cli.times import moment, span
from eventbus.model import clock
from eventbus.model.limit import Limit, read_rates, show_rate
from eventbus.provider import EventProvider

_ROWS = 30
"""So many queues and so many workers are shown by `top`."""
_NAMED = 3
"""A worker is shown with so many of its queues."""
_SILENT = 10_000
"""ms; a worker that lives is heard each 3 s."""


def _queue_row(each: QueueReport) -> Row:
    is_neglected = not each.workers and each.waiting + each.delayed > 0
    workers = Text(str(each.workers), "bold red" if is_neglected else "")
    if each.silent:
        workers.append(f" ({len(each.silent)} silent)", "bold red")
    paused = "-" if each.paused is None else f"{moment(each.paused.since_ms)} by {each.paused.by or '?'}"
    paused = f"{paused} ({each.unreadable})" if each.unreadable else paused
    oldest = "-" if each.oldest is None else span(1, 1 + round(each.oldest * 1000))
    counts = (each.waiting, each.delayed, each.active, each.parked, each.failed, each.cancelled)
    rates = (_show_rate(rate) for rate in (each.completed_per_minute, each.failed_per_minute))
    return each.name, oldest, *counts, each.completed, workers, *rates, paused, show_limit(each.limit)


def _show_rate(rate: float) -> Text:
    return Text(f"{rate:.1f}" if 0 < rate < 10 else f"{rate:.0f}")


QUEUES: Listing[QueueReport] = Listing(
    _queue_row,
    "queue, >oldest, >waiting, >delayed, >active, >parked, >failed, >cancelled, >completed, >workers, "
    ">completed/min, >failed/min, paused, limit",
    none="no queue is known: nothing was emitted, and no worker serves anything",
)


def list_workers(now_ms: int) -> Listing[WorkerReport]:
    """Return the listing of workers. `now_ms` is this machine's time, ms."""
    return Listing(
        partial(_worker_row, now_ms),
        "worker, name, host, pid, version, >running, >most, >lag, >up, >heard, queues",
        none="no worker was heard in the last 10 minutes",
    )


def _worker_row(now_ms: int, each: WorkerReport) -> Row:
    up = span(each.started_ms, now_ms) if each.started_ms else "-"
    is_silent = now_ms - each.heard_ms > _SILENT
    heard = Text(f"{span(each.heard_ms, now_ms)} ago", "bold red" if is_silent else "")
    names = ", ".join(each.queues[:_NAMED])
    more = f" and {len(each.queues) - _NAMED} more" if len(each.queues) > _NAMED else ""
    about = (each.id, each.name, each.host, str(each.pid or "-"), each.version)
    return *about, each.running, each.concurrency or "-", f"{each.lag_ms} ms", up, heard, names + more


def show_limit(order: Limit | None) -> str:
    """Return a limit as text, `-` for none."""
    if order is None:
        return "-"
    at_once = [] if order.at_once is None else [f"{order.at_once} at once"]
    each = [] if order.each is None else [f"{order.each} of each key"]
    own = [f"{rate} of each key" for rate in _list_rates(order.each_rate, "each_rate")]
    return ", ".join([*at_once, *_list_rates(order.rate, "rate"), *each, *own])


def _list_rates(given: str | Sequence[str], name: str) -> list[str]:
    return [show_rate(rate) for rate in read_rates(given, name)]


def workers(*, as_json: LinesOption = False, watch: WatchOption = False, url: UrlOption = None) -> None:
    """List the workers: host, process, version, load, event loop's lag, when they were heard, queues."""
    look(
        url, lambda provider: provider.inspector.workers.list(), _print_workers, as_json=as_json, watch=watch
    )


def _print_workers(found: list[WorkerReport]) -> None:
    list_workers(round(clock.now() * 1000)).print(found)


class _Glance(msgspec.Struct, frozen=True):
    """The fleet at one moment, Unix time in ms of this machine."""

    at_ms: int
    queues: list[QueueReport]
    workers: list[WorkerReport]


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, an object on a line for each look.")
    ] = False,
    url: UrlOption = None,
) -> None:
    """Show the queues whose jobs wait longest and the workers that run most, again every 2 seconds."""

    async def ask(provider: EventProvider) -> _Glance:
        inspector = provider.inspector
        return _Glance(
            round(clock.now() * 1000), await inspector.queues.list(), await inspector.workers.list()
        )

    look(url, ask, _print, as_json=as_json, watch=not once)


def _print(found: _Glance) -> None:
    queues = sorted(
        found.queues,
        key=lambda each: (-(each.oldest or 0), -each.active, -each.waiting - each.delayed, each.name),
    )
    workers = sorted(found.workers, key=lambda each: (-each.running, each.name, each.id))
    parts = [Text(_sum_up(found)), Text(""), QUEUES.table(queues[:_ROWS])]
    parts += [Text(_more(queues, "queue")), list_workers(found.at_ms).table(workers[:_ROWS])]
    parts += [Text(_more(workers, "worker"))] if len(workers) > _ROWS else []
    open_console().print(Group(*parts))


def _sum_up(found: _Glance) -> str:
    queues, workers = found.queues, found.workers
    counts = [
        f"{sum(getattr(each, name) for each in queues)} {name}"
        for name in ("waiting", "delayed", "active", "failed")
    ]
    most = sum(each.concurrency for each in workers)
    load = f"{sum(each.running for each in workers)} of {most} slots" if most else "no slots"
    return (
        f"{moment(found.at_ms)}  {len(queues)} queues: {', '.join(counts)}  "
        f"{len(workers)} workers: {load} taken"
    )


def _more(rows: Sequence[object], what: str) -> str:
    left = len(rows) - _ROWS
    return f"and {left} {what}{'' if left == 1 else 's'} more" if left > 0 else ""
