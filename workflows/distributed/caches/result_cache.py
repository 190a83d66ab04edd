"""The result cache of a worker: it supplies the results of earlier steps before a step runs.

A worker mostly claims a step in the call that settled the step before it. So it keeps the records that it
settled, within bounds, and reads the others from the server: all that are requested in one tick of the event
loop in one call.

What must always hold: the cache keeps a record only after the server has it; from then on the record never
changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from eventbus.lowlevel import JobClient, Outcome

MAX_RESULTS = 64
"""In a workflow of at most this many steps, all earlier results are read before a step runs."""

NEAR_RESULTS = 8
"""In a larger workflow only this many are read, the nearest: a longer workflow must not slow its steps."""

MAX_BYTES = 1 << 20
"""At most this many bytes of results are read for one step."""

_KEPT, _KEPT_BYTES, _KEPT_TEXT = 10_000, 16 << 20, 64 << 10
"""Limits of the records that a worker keeps: their number, their total length, the length of one."""


class ResultCache:
    """Reads the outcomes of jobs, in one call for all steps that start together."""

    def __init__(self, jobs: JobClient) -> None:
        self._jobs = jobs
        self.kept: dict[str, str] = {}
        self._bytes = 0
        self._waiting: list[tuple[Sequence[str], asyncio.Future[list[Outcome]]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def load(self, ids: Sequence[str]) -> list[Outcome]:
        """Return the outcomes of jobs in the order of `ids`; `later` for those past the limit of bytes.

        Raises StoreError.
        """
        kept = self.kept
        if all(job_id in kept for job_id in ids):
            return [Outcome(job_id, "completed", kept[job_id]) for job_id in ids]
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)  # all requests of this tick have come by then
        answer: asyncio.Future[list[Outcome]] = loop.create_future()
        self._waiting.append((ids, answer))
        return await answer

    def keep(self, job_id: str, text: str) -> None:
        """Keep the record of a completed job, which the server must have; drop the oldest past the limits."""
        if len(text) > _KEPT_TEXT:
            return
        self.kept[job_id] = text
        self._bytes += len(text)
        while self._bytes > _KEPT_BYTES or len(self.kept) > _KEPT:
            self._bytes -= len(self.kept.pop(next(iter(self.kept))))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._read(waiting), name="workflows-loader")
        self._calls.add(task)  # the event loop itself keeps only a weak reference
        task.add_done_callback(self._calls.discard)

    async def _read(self, waiting: list[tuple[Sequence[str], asyncio.Future[list[Outcome]]]]) -> None:
        every = list(dict.fromkeys(entry for ids, _ in waiting for entry in ids))
        try:
            found = await self._jobs.outcomes(every, max_bytes=MAX_BYTES * len(waiting))
        except Exception as error:  # noqa: BLE001  (every waiting step must get it)
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        by_id = {entry.job: entry for entry in found}
        for ids, answer in waiting:
            if not answer.done():  # its step may have been cancelled meanwhile
                answer.set_result([by_id[entry] for entry in ids])
