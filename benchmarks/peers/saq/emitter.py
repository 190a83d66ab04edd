"""The emitter of SAQ. It listens for a job's end by `Queue.listen`; `Queue.apply` polls each 0.5 s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

from saq.job import TERMINAL_STATUSES, Status

from benchmarks.measure import in_lanes
from benchmarks.peers.emitting import main
from benchmarks.peers.saq.worker import queue

_SECONDS = 60.0


def _is_ended(_key: str, status: Status) -> bool:
    return status in TERMINAL_STATUSES


class Emitter:
    async def enqueue(self, n: int) -> object:
        return await queue.enqueue("noop", n=n)

    async def fill(self, numbers: range) -> None:
        await in_lanes(len(numbers), 100, self.enqueue)

    async def ask(self, n: int) -> object:
        key = uuid4().hex
        ended = asyncio.create_task(queue.listen([key], _is_ended, timeout=_SECONDS))
        await asyncio.sleep(0)  # it listens before the job is there
        job = await queue.enqueue("noop", key=key, n=n)
        await ended
        await job.refresh()
        return job.result


@asynccontextmanager
async def opened(_url: str) -> AsyncGenerator[Emitter]:
    # One listener stays, so that the queue's subscription does: it ends with the last one.
    stays = asyncio.create_task(queue.listen(["none"], _is_ended, timeout=None))
    try:
        while not await queue.redis.execute_command("PUBSUB", "NUMPAT"):  # noqa: ASYNC110  (no other tells)
            await asyncio.sleep(0.01)
        yield Emitter()
    finally:
        stays.cancel()
        await asyncio.wait([stays])
        await queue.disconnect()


if __name__ == "__main__":
    main(opened)
