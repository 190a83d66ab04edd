"""The emitter of streaQ. A result is waited for on a channel of its own, as `Task.result` does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchmarks.peers.emitting import main
from benchmarks.peers.streaq.worker import noop, worker

CHUNK = 1000


class Emitter:
    async def enqueue(self, n: int) -> object:
        return await noop.enqueue(n=n)

    async def fill(self, numbers: range) -> None:
        for start in range(0, len(numbers), CHUNK):
            await worker.enqueue_many([noop.enqueue(n=n) for n in numbers[start : start + CHUNK]])

    async def ask(self, n: int) -> object:
        task = await noop.enqueue(n=n)
        return (await task.result()).result


@asynccontextmanager
async def opened(_url: str) -> AsyncGenerator[Emitter]:
    async with worker:
        yield Emitter()


if __name__ == "__main__":
    main(opened)
