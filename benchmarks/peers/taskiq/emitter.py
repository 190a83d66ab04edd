"""The emitter of taskiq. `wait_result` polls; each 5 ms instead of each 200 ms, which is faster."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchmarks.measure import in_lanes
from benchmarks.peers.emitting import main
from benchmarks.peers.taskiq.worker import broker, noop

_CHECK_SECONDS = 0.005


class Emitter:
    async def enqueue(self, n: int) -> object:
        return await noop.kiq(n=n)

    async def fill(self, numbers: range) -> None:
        await in_lanes(len(numbers), 100, self.enqueue)

    async def ask(self, n: int) -> object:
        task = await noop.kiq(n=n)
        return (await task.wait_result(check_interval=_CHECK_SECONDS)).return_value


@asynccontextmanager
async def opened(_url: str) -> AsyncGenerator[Emitter]:
    await broker.startup()
    try:
        yield Emitter()
    finally:
        await broker.shutdown()


if __name__ == "__main__":
    main(opened)
