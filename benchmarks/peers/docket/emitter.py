"""The emitter of docket. A result is waited for on a channel of its own, as `get_result` does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from docket import Docket

from benchmarks.peers.docket.worker import NAME, noop, place
from benchmarks.peers.emitting import main


class Emitter:
    def __init__(self, docket: Docket) -> None:
        self._docket = docket

    async def enqueue(self, n: int) -> object:
        return await self._docket.add(noop)(n=n)

    async def fill(self, numbers: range) -> None:
        await self._docket.add_many(self._docket.call(noop)(n=n) for n in numbers)

    async def ask(self, n: int) -> object:
        execution = await self._docket.add(noop)(n=n)
        return await execution.get_result()


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Emitter]:
    async with Docket(name=NAME, url=place(url)) as docket:
        docket.register(noop)
        yield Emitter(docket)


if __name__ == "__main__":
    main(opened)
