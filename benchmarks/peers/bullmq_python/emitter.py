"""The emitter of BullMQ for Python. Results come as events of the queue: `QueueEvents`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from bullmq import Queue, QueueEvents

from benchmarks.peers.emitting import main

QUEUE = "bench"
CHUNK = 1000
_CLOSE_SECONDS = 1.0


class Emitter:
    def __init__(self, url: str) -> None:
        self._url = url
        self._queue = Queue(QUEUE, {"connection": url})
        self._events: QueueEvents | None = None
        self._results: defaultdict[str, asyncio.Future[Any]] = defaultdict(asyncio.Future)

    def _listen(self) -> None:
        # From the first event on: the server was empty.
        self._events = QueueEvents(QUEUE, {"connection": self._url, "lastEventId": "0"})
        self._events.on("completed", self._completed)

    def _completed(self, event: dict[str, Any], _entry: str) -> None:
        # May come before the answer to `add`.
        self._results[event["jobId"]].set_result(event["returnvalue"])

    async def enqueue(self, n: int) -> object:
        return await self._queue.add("noop", {"n": n})

    async def fill(self, numbers: range) -> None:
        for start in range(0, len(numbers), CHUNK):
            await self._queue.addBulk(
                [{"name": "noop", "data": {"n": n}} for n in numbers[start : start + CHUNK]]
            )

    async def ask(self, n: int) -> object:
        if self._events is None:
            self._listen()
        job = await self._queue.add("noop", {"n": n})
        result = await self._results[job.id]
        del self._results[job.id]
        return result

    async def aclose(self) -> None:
        if self._events is not None:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._events.close()
            except TimeoutError:
                pass  # its reader may swallow the first cancellation; this was the second
        await self._queue.close()


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Emitter]:
    emitter = Emitter(url)
    try:
        yield emitter
    finally:
        await emitter.aclose()


if __name__ == "__main__":
    main(opened)
