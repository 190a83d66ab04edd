"""The completion tracker: correlates outcomes with the emissions that wait for them.

    registered under its own id -> (joined: under the job it met) -> settled

What must hold:
- an emission is registered before its job is sent, so no outcome finds it missing;
- an outcome that overtakes the answer to the add that asks for it (a joined key) is held
  back, bounded in number and age, and only while such an answer is owed (`early`);
- after a reconnect or a lost stream everything still waited for is looked up, and so is an
  emission before it times out: no outcome depends on one message arriving;
- an emission leaves the tracker by its outcome, its timeout or the stop, never by silence.

Crash windows: `reply-before-answer` (early), `stream-gone` (server lost it, or it expired:
opened again, all looked up), `reader-disconnected` (reading goes on at the remembered
place, all looked up), `reply-lost` (the look before the timeout finds it).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from typing import Any

from eventbus.emission import Emission
from eventbus.engine.deadlines import Deadlines
from eventbus.errors import ResponseTimeout, StoreError, UnknownJob
from eventbus.failure import describe_cancelled
from eventbus.logs import get_logger
from eventbus.store.rows import CancelRow, Outcome
from eventbus.store.store import Store
from eventbus.store.streams import ReplyStream

__all__ = ["CompletionTracker"]

_log = get_logger("eventbus.completion")

_FINAL = frozenset({"completed", "failed", "cancelled"})
_LOOK = 1000
_KEEP_ALIVE = 60.0
_TRIM_AFTER = 64
_CANCEL_DEADLINE = 30.0
EARLY_LIMIT = 10_000
EARLY_AGE = 60.0


class CompletionTracker:
    """What one emitter waits for."""

    def __init__(self, store: Store, emitter: str, *, key_ttl_ms: int = 86_400_000) -> None:
        self.deadlines = Deadlines()
        self._store = store
        self._emitter = emitter
        self._key_ttl_ms = key_ttl_ms
        self._stream = ReplyStream(store, emitter)
        self._waiting: dict[str, list[Emission[Any]]] = {}
        self._early: dict[str, tuple[float, Outcome]] = {}
        self._owed_answers = 0
        self._overdue: list[Emission[Any]] = []
        self._overdue_noted = asyncio.Event()
        self._unread: list[str] = []
        self._unread_noted = asyncio.Event()
        self._is_stopping = False

    @property
    def waiting(self) -> int:
        """Jobs that emissions wait for."""
        return len(self._waiting)

    def register(self, emission: Emission[Any], *, delay: float) -> None:
        """Wait for the emission's job; its reply timeout starts after `delay` seconds."""
        self._waiting[emission.job_id] = [emission]
        if emission.reply_timeout is not None:
            emission.bucket = self.deadlines.add(emission, delay + emission.reply_timeout)

    def join(self, emission: Emission[Any], job_id: str, state: str, text: str) -> None:
        """The emission met a job with its key, which is `open` or ended: wait for that one."""
        self._discard(emission)
        emission.job_id = job_id
        emission.mark_enqueued()
        if emission.done():
            return
        self._waiting.setdefault(job_id, []).append(emission)
        if state in _FINAL:
            # An empty text: the outcome outlived by its key alone, or too large for it.
            self.settle(Outcome(job_id, state, text or None))
        elif job_id in self._early:
            self.settle(self._early[job_id][1])

    def expect_answers(self, count: int) -> None:
        """`count` more keyed adds are under way (negative: answered)."""
        self._owed_answers += count
        if self._owed_answers == 0:
            self._early.clear()

    def settle(self, outcome: Outcome) -> None:
        """An outcome came. Foreign and late ones are dropped."""
        if outcome.text is None:
            if outcome.job in self._waiting or self._owed_answers:
                self._unread.append(outcome.job)
                self._unread_noted.set()
            return
        emissions = self._waiting.pop(outcome.job, None)
        if emissions is None:
            self._hold(outcome)
            return
        for emission in emissions:
            self.deadlines.discard(emission, emission.bucket)
            emission.settle(outcome.state, outcome.text)

    def forget(self, emission: Emission[Any], error: Exception) -> None:
        """The emission ends without an outcome."""
        self._discard(emission)
        self.deadlines.discard(emission, emission.bucket)
        emission.fail(error)

    def overdue(self, emission: Emission[Any]) -> None:
        """The emission's time is over; it is looked up before it is told so."""
        if not emission.is_enqueued and not self._is_stopping:
            # The outbox answers for it: refused, or unknown when its own deadline passes.
            emission.bucket = self.deadlines.add(emission, 0.05)
            return
        self._overdue.append(emission)
        self._overdue_noted.set()

    async def open(self, *, deadline: float | None) -> None:
        """Make the reply stream exist; before the first emission."""
        await self._stream.open(deadline=deadline)

    async def run_reader(self) -> None:
        """Read outcomes until stopped."""
        reads = 0
        await self._resume()  # the server may have been away at the start
        while not self._is_stopping:
            try:
                outcomes = await self._stream.read()
            except StoreError as error:
                if self._is_stopping:
                    return
                _log.info("reply stream interrupted", error=str(error))
                await asyncio.sleep(0.1)
                await self._resume()
                continue
            for outcome in outcomes:
                self.settle(outcome)
            reads += 1
            if reads >= _TRIM_AFTER or not outcomes:
                reads = 0
                await self._trim()

    async def run_keeper(self) -> None:
        """Keep the stream alive; when it was lost, look everything up."""
        while True:
            await asyncio.sleep(_KEEP_ALIVE)
            await self._resume()

    async def run_timeouts(self) -> None:
        """Look overdue emissions up, and settle them: with their outcome, else as timed out."""
        while True:
            await self._overdue_noted.wait()
            self._overdue_noted.clear()
            overdue, self._overdue = self._overdue, []
            overdue = [each for each in overdue if not each.done()]
            states = await self._states([each.job_id for each in overdue])
            for emission in overdue:
                if not emission.done():
                    self._time_out(emission, states.get(emission.job_id, "unknown"))

    async def run_lookups(self) -> None:
        """Read the records of outcomes that were too large to travel."""
        while True:
            await self._unread_noted.wait()
            self._unread_noted.clear()
            ids, self._unread = self._unread, []
            try:
                await self.look_up(ids, deadline=time.monotonic() + 10)
            except StoreError as error:
                _log.warning("outcomes not read, trying again", error=str(error))
                self._unread.extend(ids)
                await asyncio.sleep(0.2)
                self._unread_noted.set()

    async def look_up(self, ids: list[str], *, deadline: float) -> None:
        """Look jobs up, and settle what has ended; open ones will be told. Raises StoreError."""
        for first in range(0, len(ids), _LOOK):
            chunk = ids[first : first + _LOOK]
            for outcome in await self._store.look(self._emitter, chunk, join=True, deadline=deadline):
                if outcome.state in _FINAL:
                    self.settle(outcome)
                elif outcome.state == "unknown":
                    for emission in list(self._waiting.get(outcome.job, ())):
                        if emission.is_enqueued:  # else it is not there yet
                            self.forget(emission, UnknownJob(outcome.job))

    async def look_up_all(self) -> None:
        """Look everything up that is waited for and known to be in the server."""
        ids = [job_id for job_id, each in self._waiting.items() if any(one.is_enqueued for one in each)]
        await self.look_up(ids, deadline=time.monotonic() + 10)

    async def cancel(self, job_id: str, reason: str, *, queue: str = "") -> bool:
        """Ask for the end of a job and of those of its groups; see `EventProvider.cancel`.

        `queue` is needed where the job has no record of its own, only its groups have.
        """
        row = CancelRow(job_id, queue, secrets.token_hex(8), describe_cancelled(reason))
        deadline = time.monotonic() + _CANCEL_DEADLINE
        (word,) = await self._store.cancel([row], key_ttl_ms=self._key_ttl_ms, deadline=deadline)
        if word == "unknown":
            raise UnknownJob(job_id)
        return word != "over"

    def drop(self, emission: Emission[Any]) -> None:
        """Nobody waits for it any more."""
        self._discard(emission)
        self.deadlines.discard(emission, emission.bucket)

    def dismiss(self, error: Exception) -> None:
        """Tell those who wait for jobs that are in the server that nobody will; the others are unsent."""
        for emissions in list(self._waiting.values()):
            for emission in [each for each in emissions if each.is_enqueued]:
                self.forget(emission, error)

    async def aclose(self, error: Exception) -> None:
        """Tell every waiter that the provider stopped, and give the stream up."""
        self._is_stopping = True
        waiting, self._waiting = self._waiting, {}
        for emissions in waiting.values():
            for emission in emissions:
                emission.fail(error)
        self._early.clear()
        self.deadlines.close()
        await self._stream.aclose(delete=True)

    async def stop_reading(self) -> None:
        """End the blocked read: by an entry of our own, for a cancelled read may lose one."""
        self._is_stopping = True
        await self._stream.nudge(deadline=time.monotonic() + 1)

    async def _resume(self) -> None:
        try:
            await self._stream.open(deadline=time.monotonic() + 5)
            await self.look_up_all()
        except StoreError as error:
            _log.warning("waiting for the server to look outcomes up", error=str(error))

    async def _trim(self) -> None:
        try:
            await self._stream.trim()
        except StoreError as error:
            _log.info("reply stream not trimmed", error=str(error))

    async def _states(self, ids: list[str]) -> dict[str, str]:
        """The states of jobs; those that ended are settled on the way."""
        states: dict[str, str] = {}
        try:
            for first in range(0, len(ids), _LOOK):
                chunk = ids[first : first + _LOOK]
                for outcome in await self._store.look(
                    self._emitter, chunk, join=False, deadline=time.monotonic() + 1
                ):
                    states[outcome.job] = outcome.state
                    if outcome.state in _FINAL:
                        self.settle(outcome)
        except StoreError as error:
            _log.warning("timed-out emissions not looked up", error=str(error), count=len(ids))
        return states

    def _time_out(self, emission: Emission[Any], state: str) -> None:
        error = ResponseTimeout(
            event=emission.event, job_id=emission.job_id, timeout=emission.reply_timeout or 0.0, state=state
        )
        self.forget(emission, error)

    def _hold(self, outcome: Outcome) -> None:
        if self._owed_answers <= 0:
            return
        now = time.monotonic()
        self._early[outcome.job] = (now, outcome)
        for job_id in _too_many(self._early, now):
            del self._early[job_id]

    def _discard(self, emission: Emission[Any]) -> None:
        emissions = self._waiting.get(emission.job_id)
        if emissions is None or emission not in emissions:
            return
        emissions.remove(emission)
        if not emissions:
            del self._waiting[emission.job_id]


def _too_many(early: dict[str, tuple[float, Outcome]], now: float) -> Iterable[str]:
    """The oldest entries past the bounds; a dictionary keeps the order of arrival."""
    over = len(early) - EARLY_LIMIT
    gone: list[str] = []
    for place, (job_id, (when, _)) in enumerate(early.items()):
        if place >= over and now - when <= EARLY_AGE:
            break
        gone.append(job_id)
    return gone
