"""The completion tracker: correlates outcomes with the emissions that wait for them.

    registered under its own id -> (joined: under the id of the earlier job) -> settled

Not here: the stream itself, its position and its life (`store.reply_stream`).

What must always hold:
- an emission is registered before its job is sent, so that no outcome finds it missing;
- an outcome may overtake the answer to the add that joined its job. It is held back in `_early`,
  bounded in number and age, and only while an answer to an add with a key is owed;
- no outcome depends on the arrival of one message. After a reconnect or the loss of the stream, all
  jobs that emissions wait for are looked up, and so is each emission before it times out;
- an emission leaves the tracker by its outcome, by an error, by its timeout or by the stop, never
  silently.

Crash windows:
    `reply-before-answer`  an outcome overtakes the answer to the add: it is held back
    `stream-gone`          the server lost the stream, or its clock was set forward so that it expired: its
                           reader asks for it each 4 s, opens it again and looks up all jobs
    `reader-disconnected`  reading goes on at the remembered position, and all jobs are looked up
    `reply-lost`           the look before the timeout finds the outcome
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import weakref
from collections.abc import Iterable
from typing import Any

from eventbus.emit.emission import PendingEmission
from eventbus.engine.drain import Wait
from eventbus.errors import ProviderStopped, ResponseTimeout, StoreError, StoreUnavailable, UnknownJob
from eventbus.model import clock
from eventbus.model.durations import Duration
from eventbus.model.states import FINAL_STATES
from eventbus.runtime.timers import TimerWheel
from eventbus.settings.settings import Settings
from eventbus.store.connection.connector import TRANSIENT
from eventbus.store.reply_stream import ReplyStream
from eventbus.store.script_rows import CancelRow, Outcome
from eventbus.store.store import Store
from eventbus.telemetry.failure import describe_cancelled
from eventbus.telemetry.logging import get_logger

__all__ = ["CompletionTracker"]

_log = get_logger("eventbus.completion")

_LOOK = 1000  # jobs that one call looks up at most
_ASK_EACH = 4.0  # seconds; outcomes for a stream that is gone are dropped, and found by the look that follows
_TRIM_AFTER = 64  # reads; a trim after each read would double the calls
# Bounds of the outcomes that are held back. One that is dropped is found by a later look.
EARLY_LIMIT = 10_000
EARLY_AGE = 60.0  # seconds


class CompletionTracker:
    """The emissions of one emitter that wait for an outcome."""

    def __init__(self, store: Store, emitter: str, *, settings: Settings | None = None) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        """The event loop in which outcomes arrive."""
        self.deadlines: TimerWheel = TimerWheel()
        self._store = store
        self._emitter = emitter
        self._settings = settings or Settings()
        self._stream = ReplyStream(store, emitter)
        self._waiting: dict[str, list[PendingEmission[Any]]] = {}
        self._early: dict[str, tuple[float, Outcome]] = {}
        self._owed_answers = 0
        self._overdue: list[PendingEmission[Any]] = []
        self._overdue_noted = asyncio.Event()
        self._unread: list[str] = []
        self._unread_noted = asyncio.Event()
        self._told: set[str] = set()
        self._unlisted: set[str] = set()
        """Jobs for which so many emitters wait that this one is not told, but has to ask."""
        self._is_stopping = False
        self._asked_at = 0.0
        """When the stream was last asked for, in monotonic seconds."""
        self._failed: weakref.WeakSet[PendingEmission[Any]] = weakref.WeakSet()
        """The failed emissions to which somebody still holds a reference."""

    @property
    def waiting(self) -> int:
        """How many jobs emissions wait for."""
        return len(self._waiting)

    def register(self, emission: PendingEmission[Any], *, delay: float) -> None:
        """Wait for the emission's job. The reply timeout starts after `delay` seconds."""
        self._waiting[emission.job_id] = [emission]
        if emission.reply_timeout is not None:
            emission.bucket = self.deadlines.add(emission, delay + emission.reply_timeout)

    def join(self, emission: PendingEmission[Any], job_id: str, state: str, text: str) -> None:
        """Wait for the earlier job that has the emission's key; its `state` is `open`, `unlisted` or final.

        `unlisted`: so many emitters wait for the open job that this one has to ask for its outcome.
        """
        self._discard(emission)
        emission.job_id = job_id
        emission.mark_enqueued()
        if emission.done():
            return
        self._waiting.setdefault(job_id, []).append(emission)
        if state in FINAL_STATES:
            # An empty text: only the key is left of the job, or the outcome is too large for the answer.
            self.settle(Outcome(job_id, state, text or None))
            return
        if state == "unlisted":
            self._unlisted.add(job_id)
        if job_id in self._early:
            self.settle(self._early[job_id][1])  # the outcome overtook this answer

    def expect_answers(self, count: int) -> None:
        """Count the adds with a key whose answer is owed. A negative `count` says that they were answered."""
        self._owed_answers += count
        if self._owed_answers == 0:
            self._early.clear()

    def settle(self, outcome: Outcome) -> None:
        """Settle the emissions that wait for an outcome, or hold it back. Drop foreign and late outcomes.

        An outcome without its text is read from the job's record first.
        """
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

    def forget(self, emission: PendingEmission[Any], error: Exception) -> None:
        """End the emission with `error`, and stop waiting for its job."""
        self._discard(emission)
        self.deadlines.discard(emission, emission.bucket)
        emission.fail(error)

    def overdue(self, emission: PendingEmission[Any]) -> None:
        """Look up the job of an emission whose time is over, because its outcome may have been lost."""
        if not emission.is_enqueued and not self._is_stopping:
            # Not in the server yet, so its sender ends it at its own deadline. Ask again in 50 ms.
            emission.bucket = self.deadlines.add(emission, 0.05)
            return
        self._overdue.append(emission)
        self._overdue_noted.set()

    def note_failed(self, emission: PendingEmission[Any], error: Exception) -> None:
        """Remember a failed emission, so that `aclose` logs the error if nobody has asked for it by then.

        The object may live longer than the provider, so its own log event might come too late. An emission
        that fails because of the stop is not remembered: its waiters may still ask for the error.
        """
        if not isinstance(error, ProviderStopped):
            self._failed.add(emission)

    async def open(self, *, deadline: float | None) -> None:
        """Create the reply stream. Call this before the first emission."""
        await self._stream.open(deadline=deadline)

    async def run_reader(self) -> None:
        """Read outcomes until the tracker stops, and keep the stream alive."""
        reads = 0
        await self._resume()  # the server may have been away at the start
        while not self._is_stopping:
            try:
                outcomes = await self._stream.read()
            except StoreError as error:
                if self._is_stopping:
                    return
                self._note(error, "reply stream interrupted")
                await asyncio.sleep(0.1)
                await self._resume()  # outcomes may have been lost with the connection or the stream
                continue
            self._told.clear()
            for outcome in outcomes:
                self.settle(outcome)
            if not outcomes or clock.monotonic() - self._asked_at >= _ASK_EACH:
                await self._ask_for_stream()
            reads += 1
            if reads >= _TRIM_AFTER or not outcomes:
                reads = 0
                await self._trim()

    async def run_timeouts(self) -> None:
        """Look up overdue emissions, and end each with its outcome, as lost, or as timed out."""
        while True:
            await self._overdue_noted.wait()
            self._overdue_noted.clear()
            overdue, self._overdue = self._overdue, []
            overdue = [late for late in overdue if not late.done()]
            states = await self._states([late.job_id for late in overdue])
            for emission in overdue:
                if not emission.done():  # the look, or a reply that came meanwhile, may have settled it
                    self._time_out(emission, states.get(emission.job_id))

    async def run_lookups(self) -> None:
        """Read outcomes from the records of their jobs if they were too large for a reply."""
        while True:
            await self._unread_noted.wait()
            self._unread_noted.clear()
            ids, self._unread = self._unread, []
            try:
                await self.look_up(ids, deadline=clock.monotonic() + 10)
            except StoreError as error:
                self._note(error, "outcomes not read, trying again")
                self._unread.extend(ids)
                await asyncio.sleep(0.2)
                self._unread_noted.set()

    async def look_up(self, ids: list[str], *, deadline: float) -> None:
        """Look up jobs and settle the ended ones; the outcomes of open jobs will be sent. Raises StoreError.

        Emissions of a job that the server does not know fail with UnknownJob.
        """
        for first in range(0, len(ids), _LOOK):
            chunk = ids[first : first + _LOOK]
            for outcome in await self._store.look(self._emitter, chunk, join=True, deadline=deadline):
                if outcome.state in FINAL_STATES:
                    self.settle(outcome)
                elif outcome.text == "unlisted":
                    self._unlisted.add(outcome.job)
                elif outcome.state == "unknown":
                    for emission in list(self._waiting.get(outcome.job, ())):
                        if emission.is_enqueued:  # otherwise the add is still on its way
                            self.forget(emission, UnknownJob(outcome.job))

    async def look_up_all(self) -> None:
        """Look up all jobs that emissions wait for and that are known to be in the server."""
        ids = [job_id for job_id, waiting in self._waiting.items() if any(one.is_enqueued for one in waiting)]
        await self.look_up(ids, deadline=clock.monotonic() + 10)

    async def cancel(
        self, job_id: str, reason: str, *, queue: str = "", call_timeout: Duration | None = None
    ) -> bool:
        """Cancel a job and the jobs of its groups; see `EventProvider.cancel`.

        `queue` is needed if only the jobs of the groups have records.
        """
        if self._is_stopping:
            raise ProviderStopped("cannot cancel a job: the provider has stopped", job_id=job_id)
        # A fresh token for this request: a repeated call with it gets the same answer.
        row = CancelRow(job_id, queue, secrets.token_hex(8), describe_cancelled(reason))
        deadline = self._settings.deadline(call_timeout)
        key_ttl_ms = round(self._settings.key_ttl * 1000)
        (word,) = await self._store.cancel([row], key_ttl_ms=key_ttl_ms, deadline=deadline)
        if word == "unknown":
            raise UnknownJob(job_id)
        return word != "over"

    def find_waits(self) -> list[Wait]:
        """Return which running jobs wait for which jobs: their handlers await their own emissions."""
        emissions = (emission for waiting in self._waiting.values() for emission in waiting)
        return [Wait(*wait) for emission in emissions if (wait := emission.find_wait()) is not None]

    def drop(self, emission: PendingEmission[Any]) -> None:
        """Stop waiting for the emission's job without an end of the emission: it has no waiters any more."""
        self._discard(emission)
        self.deadlines.discard(emission, emission.bucket)

    def dismiss(self, error: Exception) -> None:
        """Fail the emissions whose jobs are in the server. The senders end the others."""
        for emissions in list(self._waiting.values()):
            for emission in [sent for sent in emissions if sent.is_enqueued]:
                self.forget(emission, error)

    async def aclose(self, error: Exception) -> None:
        """Fail all emissions that still wait, and delete the stream. Log failures that nobody asked for."""
        self._is_stopping = True
        waiting, self._waiting = self._waiting, {}
        for emissions in waiting.values():
            for emission in emissions:
                emission.fail(error)
        self._early.clear()
        self.deadlines.close()
        try:
            await self._stream.aclose(delete=True)
        finally:
            for emission in list(self._failed):
                emission.tell_unheard()

    async def stop_reading(self) -> None:
        """End the blocked read with an entry of our own, because a cancelled read may lose an entry."""
        self._is_stopping = True
        await self._stream.nudge(deadline=clock.monotonic() + 1)

    async def _ask_for_stream(self) -> None:
        """Renew the life of the stream; look up all jobs if it was gone, else those that will not be told."""
        self._asked_at = clock.monotonic()
        try:
            if await self._stream.open(deadline=self._asked_at + 5):
                _log.info("the reply stream was gone, looking outcomes up", jobs=len(self._waiting))
                await self.look_up_all()
            elif self._unlisted:
                self._unlisted.intersection_update(self._waiting)
                await self.look_up(list(self._unlisted), deadline=clock.monotonic() + 10)
        except StoreError as error:
            self._note(error, "reply stream not asked for")

    async def _resume(self) -> None:
        """Open the stream, then look up all jobs: outcomes from before it existed are in no entry."""
        self._asked_at = clock.monotonic()
        try:
            await self._stream.open(deadline=self._asked_at + 5)
            await self.look_up_all()
        except StoreError as error:
            self._note(error, "waiting for the server to look outcomes up")

    async def _trim(self) -> None:
        try:
            await self._stream.trim()
        except StoreError as error:
            self._note(error, "reply stream not trimmed")

    async def _states(self, ids: list[str]) -> dict[str, str]:
        """Return the states of jobs by their ids, without those that the server did not answer in 1 s.

        The outcomes of ended jobs are settled on the way.
        """
        states: dict[str, str] = {}
        try:
            for first in range(0, len(ids), _LOOK):
                chunk = ids[first : first + _LOOK]
                for outcome in await self._store.look(
                    self._emitter, chunk, join=False, deadline=clock.monotonic() + 1
                ):
                    states[outcome.job] = outcome.state
                    if outcome.state in FINAL_STATES:
                        self.settle(outcome)
        except StoreError as error:
            self._note(error, "timed-out emissions not looked up")
        return states

    def _note(self, error: StoreError, event: str) -> None:
        """Log an error as a warning, once until the next successful read.

        A server that is away is only logged at debug level, because the store reports outages.
        """
        is_away = isinstance(error, StoreUnavailable) or getattr(error, "code", "") in TRANSIENT
        level = logging.DEBUG if is_away or event in self._told else logging.WARNING
        _log.log(level, event, error=str(error))
        if not is_away:
            self._told.add(event)

    def _time_out(self, emission: PendingEmission[Any], state: str | None) -> None:
        """Fail an overdue emission. `state`: `unknown` for a job without a record, None without an answer."""
        if state == "unknown" and emission.is_enqueued:
            self.forget(emission, UnknownJob(emission.job_id))
            return
        error = ResponseTimeout(
            event=emission.event,
            job_id=emission.job_id,
            timeout=emission.reply_timeout or 0.0,
            state=state or "unknown",
        )
        self.forget(emission, error)

    def _hold(self, outcome: Outcome) -> None:
        """Hold an outcome back for an emission whose add is not answered yet, if there is such an add."""
        if self._owed_answers <= 0:
            return
        now = clock.monotonic()
        self._early[outcome.job] = (now, outcome)
        for job_id in _too_many(self._early, now):
            del self._early[job_id]

    def _discard(self, emission: PendingEmission[Any]) -> None:
        """Remove an emission from those that wait. Does nothing if it is not among them."""
        emissions = self._waiting.get(emission.job_id)
        if emissions is None or emission not in emissions:
            return
        emissions.remove(emission)
        if not emissions:
            del self._waiting[emission.job_id]


def _too_many(early: dict[str, tuple[float, Outcome]], now: float) -> Iterable[str]:
    """Return the ids of the oldest entries past the bounds; a dictionary keeps the order of arrival."""
    over = len(early) - EARLY_LIMIT
    gone: list[str] = []
    for place, (job_id, (when, _)) in enumerate(early.items()):
        if place >= over and now - when <= EARLY_AGE:
            break
        gone.append(job_id)
    return gone
