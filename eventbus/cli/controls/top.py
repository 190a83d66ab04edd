"""`eventbus top`: what the whole fleet does now, again and again: a line of sums, the busiest queues, the
workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.text import Text

from eventbus.admin.queues import QueueReport
from eventbus.admin.workers import WorkerReport
from eventbus.cli.controls.overview_views import QUEUES, list_workers
from eventbus.cli.controls.watching import look
from eventbus.cli.options import UrlOption
from eventbus.cli.screen import open_console
from eventbus.cli.times import moment
from eventbus.model import clock
from eventbus.provider import EventProvider

__all__ = ["top"]

_ROWS = 30
"""So many queues and so many workers are shown."""


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
