"""What our side's worker runs: the provider, the no-op event and its handler.

The worker process is `python -m eventbus worker benchmarks.app:provider`; EVENTBUS_URL says
where. With BENCH_REPORT set to a path, the process leaves there, when it ends, the figures of
its handler calls as JSON (see `Calls`).
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from time import perf_counter

import msgspec

from eventbus import Event, EventProvider

CONCURRENCY = 100
"""Jobs at a time in the worker process; the same for each peer."""

REPORT_VARIABLE = "BENCH_REPORT"


class Noop(msgspec.Struct):
    """The payload, `{"n": n}`; the same for each peer."""

    n: int


class Calls(msgspec.Struct):
    """The handler calls of this process: how many, and the moments of the first and the last."""

    count: int = 0
    first: float = 0.0
    last: float = 0.0


calls = Calls()
noop = Event("bench.noop", payload=Noop, result=int)
provider = EventProvider(concurrency=CONCURRENCY, max_concurrency=CONCURRENCY)


@provider.on(noop)
async def answer(payload: Noop) -> int:
    """Return `n + 1`, and note the moment."""
    calls.last = perf_counter()
    if not calls.count:
        calls.first = calls.last
    calls.count += 1
    return payload.n + 1


def _leave(path: str) -> None:
    Path(path).write_bytes(msgspec.json.encode(calls))


if _path := os.environ.get(REPORT_VARIABLE):
    atexit.register(_leave, _path)
