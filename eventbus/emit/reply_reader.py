"""The reply reader: reads the reply stream of one uplink, and asks for the outcomes that did not come.

Its roles are the reader, the timeouts, the lookups and the keeper of the stream; the uplink runs them.

Not here: the stream itself and its position (`store.reply_stream`), its life (`stream_keeper`), and who waits
(`wait_list`).

What must always hold: no outcome depends on the arrival of one message. After a reconnect or the loss of the
stream, all jobs that emissions wait for are looked up, and so is each emission before it times out.

Crash windows: those of `stream_keeper`, and
    `reply-lost`           the look before the timeout finds the outcome
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from eventbus.emit.attendance import Attendance
from eventbus.emit.emission import PendingEmission
from eventbus.emit.lookup import Lookup
from eventbus.emit.stream_keeper import StreamKeeper
from eventbus.emit.wait_list import WaitList
from eventbus.errors import ResponseTimeout, StoreError, StoreUnavailable, UnknownJob
from eventbus.model import clock
from eventbus.store.connection.translation import TRANSIENT
from eventbus.store.reply_stream import ReplyStream
from eventbus.store.scripting.script_rows import Outcome
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.completion")

_TRIM_AFTER = 64  # reads; a trim after each read would double the calls


class ReplyReader:
    """Brings outcomes to the emissions of a wait list."""

    def __init__(self, store: Store, emitter: str, waits: WaitList, attendance: Attendance) -> None:
        self._stream = ReplyStream(store, emitter, on_gone=attendance.note_gap)
        self._waits = waits
        self._attendance = attendance
        self._lookup = Lookup(store, emitter, waits, attendance, self._stream)
        self.keeper: StreamKeeper = StreamKeeper(
            self._stream, waits, attendance, self._lookup, note=self._note
        )
        """Keeps the stream alive."""
        self._overdue: list[PendingEmission[Any]] = []
        self._overdue_noted = asyncio.Event()
        self._told: set[str] = set()
        self._is_stopping = False

    def overdue(self, emission: PendingEmission[Any]) -> None:
        """Look up the job of an emission whose time is over, because its outcome may have been lost."""
        self._overdue.append(emission)
        self._overdue_noted.set()

    async def run_reader(self) -> None:
        """Read outcomes until the reader stops."""
        reads = 0
        while not self._is_stopping:
            try:
                outcomes = await self._stream.read()
            except StoreError as error:
                if self._is_stopping:
                    return
                self._note(error, "reply stream interrupted")
                self._attendance.note_gap()  # outcomes may have been lost with the connection or the stream
                await asyncio.sleep(0.1)
                continue
            self._told.clear()
            self._take(outcomes)
            reads += 1
            if reads >= _TRIM_AFTER or not outcomes:
                reads = 0
                await self._trim()

    def _take(self, outcomes: list[Outcome]) -> None:
        """Settle what a read brought, and only then note how far it came."""
        for outcome in outcomes:
            self._waits.settle(outcome)
        if self._stream.is_at_end:
            self._attendance.note_nothing()
        else:
            self._attendance.note_read(self._stream.mark, len(outcomes))

    async def run_timeouts(self) -> None:
        """Look up overdue emissions, and end each with its outcome, as lost, or as timed out."""
        while True:
            await self._overdue_noted.wait()
            self._overdue_noted.clear()
            overdue, self._overdue = self._overdue, []
            overdue = [late for late in overdue if not late.done()]
            try:
                states = await self._read_states([late.job_id for late in overdue])
                for emission in overdue:
                    if not emission.done():  # the look, or a reply that came meanwhile, may have settled it
                        self._time_out(emission, states.get(emission.job_id))
            except BaseException:  # the role is started again
                self._overdue += overdue
                self._overdue_noted.set()
                raise

    async def run_lookups(self) -> None:
        """Read outcomes from the records of their jobs if a reply does not tell them, or not for sure."""
        waits = self._waits
        while True:
            await waits.unread_noted.wait()
            waits.unread_noted.clear()
            ids, waits.unread, announced = waits.unread, [], waits.announced
            try:
                asked = [job_id for job_id in dict.fromkeys(ids) if job_id in waits.jobs]
                await self._lookup.look_up(asked, deadline=clock.monotonic() + 10)
                waits.looked = announced
            except StoreError as error:
                self._note(error, "outcomes not read, trying again")
                waits.unread.extend(ids)
                waits.unread_noted.set()
                await asyncio.sleep(0.2)
            except BaseException:  # the role is started again
                waits.unread.extend(ids)
                waits.unread_noted.set()
                raise

    async def stop(self, *, deadline: float) -> None:
        """End the blocked read with an entry of our own, because a cancelled read may lose an entry."""
        self._is_stopping = True
        await self._stream.nudge(deadline=deadline)

    async def aclose(self, *, delete: bool, deadline: float) -> None:
        """Close the connection, and delete the stream if `delete`. Raises StoreError without an answer."""
        self._is_stopping = True
        await self._stream.aclose(delete=delete, attendance=self._attendance.quit(), deadline=deadline)

    async def _trim(self) -> None:
        try:
            await self._stream.trim()
        except StoreError as error:
            self._note(error, "reply stream not trimmed")

    async def _read_states(self, ids: list[str]) -> dict[str, str]:
        """Return the states of jobs by their ids, without those that the server did not answer in 1 s."""
        states: dict[str, str] = {}
        try:
            await self._lookup.read_states(ids, states, within=1)
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
            self._waits.forget(emission, UnknownJob(emission.job_id))
            return
        error = ResponseTimeout(
            event=emission.event,
            job_id=emission.job_id,
            timeout=emission.reply_timeout or 0.0,
            state=state or "unknown",
        )
        self._waits.forget(emission, error)
