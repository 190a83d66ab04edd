"""The history of a queue: what became of its jobs, by minute or hour, and how long they waited and ran."""

from __future__ import annotations

import msgspec

from eventbus.admin.history import Minute
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.queues import find_queue
from eventbus.dashboard.desk.rows import Read
from eventbus.dashboard.entry.gate import Caller
from eventbus.model.histogram import Histogram


class HistoryQuery(msgspec.Struct, frozen=True):
    """The time that is told, such as `1 hour` or `7 days`: by minute up to 6 hours, else by hour."""

    last: str = "1 hour"


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """One minute or hour that began at `at_ms`. Percentiles are in seconds, None where nothing was
    counted.
    """

    at_ms: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    retried: int
    stalled: int
    waiting: int
    oldest_ms: int
    wait_p95: float | None
    run_p95: float | None


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The periods, oldest first, and the percentiles of all of them together, in seconds."""

    queue: str
    periods: list[Period]
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    run_p50: float | None
    run_p95: float | None
    run_p99: float | None


async def read_history(desk: Desk, caller: Caller, path: dict[str, str], query: HistoryQuery) -> HistoryView:
    """Return the history of a queue."""
    queue = find_queue(desk, caller, path["queue"])
    found = await desk.inspector.queues.history(queue, last=query.last)
    waits = Histogram.total(each.waits for each in found)
    runs = Histogram.total(each.runs for each in found)
    return HistoryView(
        queue=queue,
        periods=[_period(each) for each in found],
        wait_p50=waits.p50,
        wait_p95=waits.p95,
        wait_p99=waits.p99,
        run_p50=runs.p50,
        run_p95=runs.p95,
        run_p99=runs.p99,
    )


def _period(minute: Minute) -> Period:
    fields = msgspec.structs.asdict(minute)
    waits, runs = fields.pop("waits"), fields.pop("runs")
    return Period(**fields, wait_p95=waits.p95, run_p95=runs.p95)


READS = (
    Read(
        "/queues/{queue}/history",
        "What became of the jobs of a queue, by minute or hour.",
        HistoryView,
        read_history,
        HistoryQuery,
    ),
)
