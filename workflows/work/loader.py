"""Earlier results, read before a step runs: those asked for in one tick of the loop in one call.

A step is mostly claimed in the call that settled the one before it, so by the worker that has
that one's record: it keeps what it settled, bounded, and asks the server for the rest. What must
hold: a record is kept once the server has it, and never changes then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from eventbus.lowlevel import Jobs, Outcome

__all__ = ["MAX_BYTES", "MAX_RESULTS", "NEAR_RESULTS", "Loader"]

MAX_RESULTS = 64
"""In a workflow of so many steps at most, every earlier result is read before a step runs."""

NEAR_RESULTS = 8
"""In a larger one the nearest are; the cost of a step must not follow the length of its workflow."""

MAX_BYTES = 1 << 20
"""So many bytes of them at most."""

_KEPT, _KEPT_BYTES, _KEPT_TEXT = 10_000, 16 << 20, 64 << 10
"""Records that a worker keeps: so many, of so many bytes together and each."""


class Loader:
    """Reads outcomes of jobs for the steps that start together."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._kept: dict[str, str] = {}
        self._bytes = 0
        self._waiting: list[tuple[Sequence[str], asyncio.Future[list[Outcome]]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def load(self, ids: Sequence[str]) -> list[Outcome]:
        """The outcomes of jobs in the order asked; `later` for those that were left out. Raises StoreError."""
        kept = self._kept
        if all(each in kept for each in ids):
            return [Outcome(each, "completed", kept[each]) for each in ids]
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        answer: asyncio.Future[list[Outcome]] = loop.create_future()
        self._waiting.append((ids, answer))
        return await answer

    def keep(self, job_id: str, text: str) -> None:
        """The server has this record of a completed job."""
        if len(text) > _KEPT_TEXT:
            return
        self._kept[job_id] = text
        self._bytes += len(text)
        while self._bytes > _KEPT_BYTES or len(self._kept) > _KEPT:
            self._bytes -= len(self._kept.pop(next(iter(self._kept))))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._read(waiting), name="workflows-loader")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _read(self, waiting: list[tuple[Sequence[str], asyncio.Future[list[Outcome]]]]) -> None:
        every = list(dict.fromkeys(each for ids, _ in waiting for each in ids))
        try:
            found = await self._jobs.outcomes(every, max_bytes=MAX_BYTES * len(waiting))
        except Exception as error:  # noqa: BLE001  (each of those who wait must hear it)
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        by_id = {each.job: each for each in found}
        for ids, answer in waiting:
            if not answer.done():
                answer.set_result([by_id[each] for each in ids])
