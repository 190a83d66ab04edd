"""A worker of BullMQ for Python, with the no-op handler."""

from __future__ import annotations

import asyncio
import os

from bullmq import Job, Worker

from benchmarks.calls import calls
from benchmarks.measure import run

QUEUE = "bench"


async def noop(job: Job, _token: str) -> int:
    calls.note()
    return job.data["n"] + 1


async def main() -> None:
    Worker(QUEUE, noop, {"connection": os.environ["BENCH_URL"], "concurrency": 100})
    await asyncio.Event().wait()


if __name__ == "__main__":
    run(main())
