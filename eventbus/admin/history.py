"""The history of a queue, by minute or by hour: how many jobs ended how, how long they waited and ran.

Workers count in memory and tell the server each 5 seconds (`engine.reporting`), so these are statistics: of a
worker that is killed they lack the last seconds. The states of jobs are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.durations import Duration, seconds
from eventbus.model.histogram import LAST_BUCKET, Histogram
from eventbus.model.names import shown
from eventbus.model.windows import LONGEST_HOURS, LONGEST_MINUTES
from eventbus.store.calls import history_store as codes
from eventbus.store.store import Store

Step: TypeAlias = Literal["1m", "1h"]

_STEPS = {"1m": 60_000, "1h": 3_600_000}
_LONGEST = {"1m": LONGEST_MINUTES, "1h": LONGEST_HOURS}
_BY_MINUTE = 6 * 3600.0
"""Seconds: what is longer is told by the hour, if nobody says otherwise."""


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the jobs of a queue in the minute, or the hour, that began at `at_ms`, Unix time in ms.

    `completed`, `failed`, `cancelled` and `expired` (not started within their `ttl`) count jobs that ended,
    each job in one of them. `retried` counts attempts that failed and are made again, `stalled` leases that
    ran out. `waits` has for each job how long it waited, from when it was due until its first start, and
    `runs` for each attempt how long it took; both are counted when the attempt ends. `waiting` is how many
    jobs waited at the last look in this time, and `oldest_ms` the age of the oldest of them; 0 where none was
    seen. Workers look each minute.
    """

    at_ms: int
    completed: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    stalled: int = 0
    expired: int = 0
    waits: Histogram = Histogram()
    runs: Histogram = Histogram()
    waiting: int = 0
    oldest_ms: int = 0


def read_length(last: Duration, step: Step | None) -> tuple[Step, int]:
    """Return the step, and how many of them `last` has. Raises DefinitionError."""
    span = seconds(last, setting="last")
    step = _read_step(step, span)
    if not 0 < span <= _LONGEST[step]:
        raise DefinitionError(
            f"expected last to be above 0 and at most {_LONGEST[step] / 86_400:g} days with a step of {step}"
            f", got: {shown(last)}"
        )
    return step, max(1, -(-round(span * 1000) // _STEPS[step]))


async def read_minutes(store: Store, queue: str, step: Step, count: int, *, deadline: float) -> list[Minute]:
    """Return what became of the jobs of a queue in the newest `count` minutes or hours, oldest first."""
    kind = "minutes" if step == "1m" else "hours"
    at, cells = await store.history.look(queue, kind, count, deadline=deadline)
    width = _STEPS[step]
    newest = at // width
    return [_minute(each * width, cells.get(each, {})) for each in range(newest - count + 1, newest + 1)]


def _read_step(step: Step | None, span: float) -> Step:
    if step is None:
        return "1m" if span <= _BY_MINUTE else "1h"
    if step in ("1m", "1h"):
        return step
    raise DefinitionError(f'expected step to be "1m" or "1h", got: {shown(step)}')


def _minute(at_ms: int, cell: Mapping[int, int]) -> Minute:
    def count(code: int) -> int:
        return max(0, cell.get(code, 0))

    return Minute(
        at_ms=at_ms,
        completed=count(codes.COMPLETED),
        failed=count(codes.FAILED),
        retried=count(codes.RETRIED),
        cancelled=count(codes.CANCELLED),
        stalled=count(codes.STALLED),
        expired=count(codes.EXPIRED),
        waits=_histogram(cell, codes.WAITS),
        runs=_histogram(cell, codes.RUNS),
        waiting=count(codes.WAITING),
        oldest_ms=count(codes.OLDEST),
    )


def _histogram(cell: Mapping[int, int], first: int) -> Histogram:
    return Histogram(
        {code - first: count for code, count in cell.items() if first <= code <= first + LAST_BUCKET}
    )
