"""Printing all queues and all workers for people, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from eventbus.admin.queues import QueueReport
from eventbus.admin.workers import WorkerReport
from eventbus.cli.controls.limit_views import show_limit
from eventbus.cli.toolkit import moment, printable, span

__all__ = ["tabulate_queues", "tabulate_workers"]

_COUNTS = ("waiting", "delayed", "active", "parked", "failed", "cancelled", "completed", "workers")
_RATES = ("completed/min", "failed/min")
_NAMED = 3
"""A worker is shown with so many of its queues."""
_SILENT = 10_000
"""ms; a worker that lives is heard each 3 s."""


def tabulate_queues(queues: Sequence[QueueReport]) -> RenderableType:
    """Return the queues as a table, one on a line."""
    if not queues:
        return Text("no queue is known: nothing was emitted, and no worker serves anything")
    table = Table(box=None, pad_edge=False)
    table.add_column("queue", no_wrap=True)
    for name in ("oldest", *_COUNTS, *_RATES):
        table.add_column(name, no_wrap=True, justify="right")
    for name in ("paused", "limit"):
        table.add_column(name, no_wrap=True)
    for each in queues:
        is_neglected = not each.workers and each.waiting + each.delayed > 0
        counts = [Text(str(getattr(each, name))) for name in _COUNTS]
        counts[-1].stylize("bold red" if is_neglected else "")
        if each.silent:
            counts[-1].append(f" ({len(each.silent)} silent)", "bold red")
        paused = "-" if each.paused is None else f"{moment(each.paused.since_ms)} by {each.paused.by or '?'}"
        paused = f"{paused} ({each.unreadable})" if each.unreadable else paused
        oldest = "-" if each.oldest is None else span(1, 1 + round(each.oldest * 1000))
        rates = (Text(_show_rate(rate)) for rate in (each.completed_per_minute, each.failed_per_minute))
        cells = (Text(oldest), *counts, *rates, Text(printable(paused)), Text(show_limit(each.limit)))
        table.add_row(Text(printable(each.name)), *cells)
    return table


def _show_rate(rate: float) -> str:
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:.0f}"


def tabulate_workers(workers: Sequence[WorkerReport], now_ms: int) -> RenderableType:
    """Return the workers as a table, one on a line. `now_ms` is this machine's time, ms."""
    if not workers:
        return Text("no worker was heard in the last 10 minutes")
    table = Table(box=None, pad_edge=False)
    for name in ("worker", "name", "host", "pid", "version"):
        table.add_column(name, no_wrap=True)
    for name in ("running", "most", "lag", "up", "heard"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("queues", no_wrap=True, overflow="ellipsis")
    for each in workers:
        up = span(each.started_ms, now_ms) if each.started_ms else "-"
        heard = Text(f"{span(each.heard_ms, now_ms)} ago")
        heard.stylize("bold red" if now_ms - each.heard_ms > _SILENT else "")
        names = ", ".join(each.queues[:_NAMED])
        more = f" and {len(each.queues) - _NAMED} more" if len(each.queues) > _NAMED else ""
        about = (each.id, each.name, each.host, str(each.pid or "-"), each.version)
        load = (str(each.running), str(each.concurrency or "-"), f"{each.lag_ms} ms", up)
        texts = [Text(printable(text)) for text in (*about, *load)]
        table.add_row(*texts, heard, Text(printable(names + more)))
    return table
