"""The listings of all queues and all workers, and limits as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.text import Text

from eventbus.admin.queues import QueueReport
from eventbus.admin.workers import WorkerReport
from eventbus.cli.listing import Listing, Row
from eventbus.cli.times import moment, span
from eventbus.model.limit import Limit, read_rates, show_rate

__all__ = ["QUEUES", "list_workers", "show_limit"]

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
