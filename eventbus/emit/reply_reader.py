"""The reply reader: reads the reply stream of one uplink, and asks for the outcomes that did not come.

Its roles are the reader, the timeouts and the lookups; the uplink runs them.

Not here: the stream itself, its position and its life (`store.reply_stream`), and who waits (`wait_list`).

What must always hold: no outcome depends on the arrival of one message. After a reconnect or the loss of the stream,
all jobs that emissions wait for are looked up, and so is each emission before it times out.

Crash windows:
    `stream-gone`          the server lost the stream, or its clock was set forward so that it expired: its
                           reader asks for it each 4 s, opens it again and looks up all jobs
    `reader-disconnected`  reading goes on at the remembered position, and all jobs are looked up
    `reply-lost`           the look before the timeout finds the outcome
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from eventbus.emit.emission import PendingEmission
from eventbus.emit.lookup import Lookup
from eventbus.emit.wait_list import WaitList
from eventbus.errors import ResponseTimeout, StoreError, StoreUnavailable, UnknownJob
from eventbus.model import clock
from eventbus.store.connection.connector import TRANSIENT
from eventbus.store.reply_stream import ReplyStream
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger

__all__ = ["ReplyReader"]

_log = get_logger("eventbus.completion")

_ASK_EACH = 4.0  # seconds; outcomes for a stream that is gone are dropped, and found by the look that follows
_TRIM_AFTER = 64  # reads; a trim after each read would double the calls


class ReplyReader:
    """Brings outcomes to the emissions of a wait list."""

    def __init__(self, store: Store, emitter: str, waits: WaitList) -> None:
        self._stream = ReplyStream(store, emitter)
        self._waits = waits
        self._lookup = Lookup(store, emitter, waits)
        self._overdue: list[PendingEmission[Any]] = []
        self._overdue_noted = asyncio.Event()
        self._told: set[str] = set()
        self._is_stopping = False
        self._is_look_due = False
        """The stream was gone, and not all jobs have been looked up since."""
        self._asked_at = 0.0
        """When the stream was last asked for, in monotonic seconds."""

    def overdue(self, emission: PendingEmission[Any]) -> None:
        """Look up the job of an emission whose time is over, because its outcome may have been lost."""
        self._overdue.append(emission)
        self._overdue_noted.set()

    async def open(self, *, deadline: float | None) -> None:
        """Create the reply stream. Each provider calls this before its first emission. Raises StoreError.

        If the stream was gone while others used it, the reader looks up the jobs that they wait for, within 4 s.
        """
        if await self._stream.open(deadline=deadline) and self._asked_at:
            self._is_look_due = True

    async def run_reader(self) -> None:
        """Read outcomes until the reader stops, and keep the stream alive."""
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
                self._waits.settle(outcome)
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
            states = await self._read_states([late.job_id for late in overdue])
            for emission in overdue:
                if not emission.done():  # the look, or a reply that came meanwhile, may have settled it
                    self._time_out(emission, states.get(emission.job_id))

    async def run_lookups(self) -> None:
        """Read outcomes from the records of their jobs if they were too large for a reply."""
        waits = self._waits
        while True:
            await waits.unread_noted.wait()
            waits.unread_noted.clear()
            ids, waits.unread = waits.unread, []
            try:
                await self._lookup.look_up(ids, deadline=clock.monotonic() + 10)
            except StoreError as error:
                self._note(error, "outcomes not read, trying again")
                waits.unread.extend(ids)
                await asyncio.sleep(0.2)
                waits.unread_noted.set()

    async def stop(self, *, deadline: float) -> None:
        """End the blocked read with an entry of our own, because a cancelled read may lose an entry."""
        self._is_stopping = True
        await self._stream.nudge(deadline=deadline)

    async def aclose(self, *, delete: bool, deadline: float) -> None:
        """Close the connection, and delete the stream if `delete`. Raises StoreError without an answer."""
        self._is_stopping = True
        await self._stream.aclose(delete=delete, deadline=deadline)

    async def _ask_for_stream(self) -> None:
        """Renew the life of the stream; look up all jobs if it was gone, else those that will not be told."""
        self._asked_at = clock.monotonic()
        unlisted = self._waits.unlisted
        try:
            if await self._stream.open(deadline=self._asked_at + 5):
                self._is_look_due = True
            if self._is_look_due:
                _log.info("the reply stream was gone, looking outcomes up", jobs=len(self._waits.jobs))
                await self._look_up_all()
            elif unlisted:
                unlisted.intersection_update(self._waits.jobs)
                await self._lookup.look_up(list(unlisted), deadline=clock.monotonic() + 10)
        except StoreError as error:
            self._note(error, "reply stream not asked for")

    async def _look_up_all(self) -> None:
        await self._lookup.look_up(self._waits.find_enqueued(), deadline=clock.monotonic() + 10)
        self._is_look_due = False

    async def _resume(self) -> None:
        """Open the stream, then look up all jobs: outcomes from before it existed are in no entry."""
        self._asked_at = clock.monotonic()
        try:
            await self._stream.open(deadline=self._asked_at + 5)
            await self._look_up_all()
        except StoreError as error:
            self._note(error, "waiting for the server to look outcomes up")

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
