"""The lookup: asks the records of jobs for outcomes that did not come, or came without their text.

No outcome depends on the arrival of one message, because each job that somebody waits for can be looked up.

Not here: when that is done (`reply_reader`; `emitter` for `provider.result`).
"""

from __future__ import annotations

from typing import Any

from eventbus.emit.attendance import Attendance
from eventbus.emit.emission import PendingEmission
from eventbus.emit.wait_list import WaitList
from eventbus.errors import UnknownJob
from eventbus.model import clock
from eventbus.model.states import FINAL_STATES
from eventbus.store.bounds import PAGE_JOBS
from eventbus.store.reply_stream import ReplyStream
from eventbus.store.store import Store


class Lookup:
    """Looks jobs up over one store, and settles the emissions of a wait list."""

    def __init__(
        self,
        store: Store,
        emitter: str,
        waits: WaitList,
        attendance: Attendance,
        stream: ReplyStream | None = None,
    ) -> None:
        """`stream`: where outcomes of jobs may lie whose records are gone; None if nobody has waited for them
        before.
        """
        self._stream = stream
        self._store = store
        self._emitter = emitter
        self._waits = waits
        self._attendance = attendance

    async def _read_ahead(self, deadline: float) -> None:
        """Settle what the stream holds and nobody has read yet: an emitter that hung may find it
        there alone.
        """
        if self._stream is not None:
            for outcome in await self._stream.read_ahead(deadline=deadline):
                self._waits.settle(outcome)

    async def look_up(self, ids: list[str], *, deadline: float) -> None:
        """Look up jobs and settle the ended ones; the outcomes of open jobs will be sent. Raises StoreError.

        Emissions of a job that the server does not know fail with UnknownJob, unless the stream has the
        outcome.
        """
        for first in range(0, len(ids), PAGE_JOBS):
            chunk = ids[first : first + PAGE_JOBS]
            said = self._attendance.say_always()
            asked = self._find_waiting(chunk)
            told = {job_id: self._waits.told_of(job_id) for job_id in chunk}
            unknown: list[str] = []
            for outcome in await self._store.look(
                self._emitter, chunk, join=True, attendance=said, deadline=deadline
            ):
                if outcome.state in FINAL_STATES:
                    self._waits.settle_recorded(outcome, asked[outcome.job])
                elif outcome.state == "unknown":
                    unknown.append(outcome.job)
                else:
                    self._waits.note_open(outcome.job, told[outcome.job])
                    if outcome.text == "unlisted":
                        self._waits.unlisted.add(outcome.job)
            if unknown:
                await self._read_ahead(deadline)
            for job_id in unknown:
                self._end_unknown(job_id, asked[job_id])

    async def read_states(self, ids: list[str], states: dict[str, str], *, within: float) -> None:
        """Fill `states` with the states of jobs by their ids, and settle the ended ones on the way.

        Each call may take `within` seconds. Raises StoreError; the states read before it stay.
        """
        unknown: dict[str, str] = {}  # not sure before the stream was read
        for first in range(0, len(ids), PAGE_JOBS):
            chunk = ids[first : first + PAGE_JOBS]
            deadline = clock.monotonic() + within
            asked = self._find_waiting(chunk)
            for outcome in await self._store.look(self._emitter, chunk, join=False, deadline=deadline):
                (unknown if outcome.state == "unknown" else states)[outcome.job] = outcome.state
                if outcome.state in FINAL_STATES:
                    self._waits.settle_recorded(outcome, asked[outcome.job])
        if unknown:
            await self._read_ahead(clock.monotonic() + within)
            states.update(unknown)

    def _find_waiting(self, ids: list[str]) -> dict[str, set[PendingEmission[Any]]]:
        """Return who waits for each job now."""
        return {job_id: set(self._waits.jobs.get(job_id, ())) for job_id in ids}

    def _end_unknown(self, job_id: str, asked: set[PendingEmission[Any]]) -> None:
        """End who waits for a job without a record: with what the stream said of it, or with UnknownJob."""
        if told := self._waits.told_of(job_id):
            self._waits.settle_recorded(told, asked)
        for emission in list(self._waits.jobs.get(job_id, ())):
            if emission.is_enqueued:  # otherwise the add is still on its way
                self._waits.forget(emission, UnknownJob(job_id))
