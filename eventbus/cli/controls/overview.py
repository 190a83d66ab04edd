"""`eventbus workers` and `eventbus top`: the workers, and what the whole fleet does.

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
from eventbus.cli.controls.queues import QUEUES
from eventbus.cli.controls.watching import look
from eventbus.cli.listing import Listing, Row
from eventbus.cli.options import LinesOption, UrlOption, WatchOption
from eventbus.cli.screen import open_console
from eventbus.cli.times import moment, span
from eventbus.model import clock
from eventbus.provider import EventProvider

_ROWS = 30
"""So many queues and so many workers are shown by `top`."""
_NAMED = 3
"""A worker is shown with so many of its queues."""
_SILENT = 10_000
"""ms; a worker that lives is heard each 3 s."""


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
