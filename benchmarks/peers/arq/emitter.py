"""The emitter of arq. `Job.result` polls; each 10 ms instead of each 500 ms, which is faster."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings

from benchmarks.measure import in_lanes
from benchmarks.peers.emitting import main

_POLL_SECONDS = 0.01


class Emitter:
    def __init__(self, pool: ArqRedis) -> None:
        self._pool = pool

    async def enqueue(self, n: int) -> object:
        return await self._pool.enqueue_job("noop", n=n)

    async def fill(self, numbers: range) -> None:
        await in_lanes(len(numbers), 100, self.enqueue)

    async def ask(self, n: int) -> object:
        job = await self._pool.enqueue_job("noop", n=n)
        if job is None:
            raise RuntimeError("the job exists already")
        return await job.result(poll_delay=_POLL_SECONDS)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Emitter]:
    pool = await create_pool(RedisSettings.from_dsn(url))
    try:
        yield Emitter(pool)
    finally:
        await pool.aclose()


if __name__ == "__main__":
    main(opened)
