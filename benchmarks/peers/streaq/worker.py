"""streaQ's worker with the no-op task; the emitter uses it too. Run by `streaq run`."""

from __future__ import annotations

import os

from streaq import Worker

from benchmarks.calls import calls

worker = Worker(
    redis_url=os.environ["BENCH_URL"],
    concurrency=100,
    redis_kwargs={"max_connections": 1000},  # each awaited result takes one
    anyio_kwargs={"use_uvloop": True},
)


@worker.task(silent=True)
async def noop(n: int) -> int:
    calls.note()
    return n + 1
