"""The stream keeper: keeps the reply stream of one uplink alive, raises its floor, and looks up what no
stream tells.

It calls each second while the emitter attends, after 1,000 outcomes at once, and each 4 s while it is absent.

Not here: what the floor may rise to (`attendance`), and reading (`reply_reader`).

What must always hold: after a gap, all jobs that emissions wait for are looked up, also those of adds whose
answer was owed then. Until that is done the floor does not rise.

Crash windows:
    `stream-gone`          the server lost the stream, or its clock was set forward so that it expired: the
                           next call notes the gap, makes it anew, and all jobs are looked up
    `reader-disconnected`  reading goes on at the remembered position, and all jobs are looked up
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from eventbus.emit.attendance import Attendance
from eventbus.emit.lookup import Lookup
from eventbus.emit.wait_list import WaitList
from eventbus.errors import StoreError
from eventbus.model import clock
from eventbus.runtime.upkeep import mark
from eventbus.store.reply_stream import ReplyStream
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.completion")

_EACH = 1.0  # seconds, while the emitter attends
_IDLE = 4.0  # seconds, while it is absent; also between two looks at jobs whose end is not told
_AGAIN = 0.1  # seconds after an error
_PATIENCE = 5.0  # seconds for a call
_LOOK_PATIENCE = 10.0  # seconds for the looks at all jobs


class StreamKeeper:
    """The presence of one emitter in the server."""

    def __init__(
        self,
        stream: ReplyStream,
        waits: WaitList,
        attendance: Attendance,
        lookup: Lookup,
        *,
        note: Callable[[StoreError, str], None],
    ) -> None:
        """`note` takes an error and what could not be done because of it, for the log."""
        self._stream = stream
        self._waits = waits
        self._attendance = attendance
        self._lookup = lookup
        self._note = note
        self._is_opened = False
        self._has_failed = False
        self._ran_at = 0.0
        self._asked_at = 0.0
        self._looked_for = 0
        """The gap for which jobs were looked up that could be."""

    async def open(self, *, deadline: float | None) -> None:
        """Make the stream. Each provider calls this before its first emission. Raises StoreError."""
        _, was_gone = await self._stream.attend(deadline=deadline)
        self._note_stream(was_gone)

    async def run(self) -> None:
        """Keep the stream until this is cancelled."""
        mark("always")
        while True:
            await self.run_once()
            await self._wait_due()

    async def run_once(self) -> None:
        """Renew the stream, raise the floor or leave, and look up what has to be."""
        self._ran_at = clock.monotonic()
        self._has_failed = True
        try:
            await self._attend()
            if self._attendance.has_gap:
                await self._look_up_all()
            elif self._waits.unlisted and self._ran_at - self._asked_at >= _IDLE:
                await self._look_up_unlisted()
        except StoreError as error:
            self._note(error, "reply stream not asked for")
        else:
            self._has_failed = False

    async def _attend(self) -> None:
        attendance, deadline = self._attendance, clock.monotonic() + _PATIENCE
        if left := attendance.leave():
            _, was_gone = await self._stream.attend(left, "left", deadline=deadline)
            self._note_stream(was_gone)
            return
        name = attendance.name
        floor = attendance.floor if name else ""  # before the next mark, which takes the last one's place
        mark = attendance.next_mark() if name else ""
        time, was_gone = await self._stream.attend(name, floor, mark=mark, deadline=deadline)
        self._note_stream(was_gone)
        attendance.confirm(name)
        if mark:
            attendance.note_made(time)

    def _note_stream(self, was_gone: bool) -> None:
        if was_gone and self._is_opened:
            _log.info("the reply stream was gone, looking outcomes up", jobs=len(self._waits.jobs))
        self._is_opened = True
        self._attendance.note_whole()

    async def _look_up_all(self) -> None:
        """Look up all jobs, at once and again when that closes the gap."""
        gap, number = self._attendance.begin_look(), self._attendance.gaps
        if not gap and self._looked_for == number:
            return  # the adds are not answered yet
        await self._lookup.look_up(self._waits.find_enqueued(), deadline=clock.monotonic() + _LOOK_PATIENCE)
        self._looked_for = number
        self._attendance.end_look(gap)

    async def _look_up_unlisted(self) -> None:
        self._asked_at = self._ran_at
        unlisted, mark = self._waits.unlisted, self._attendance.made_mark
        unlisted.intersection_update(self._waits.jobs)
        await self._lookup.look_up(list(unlisted), deadline=clock.monotonic() + _LOOK_PATIENCE)
        self._attendance.note_asked(mark)

    async def _wait_due(self) -> None:
        """Wait until the next call is due; what is noted meanwhile may bring it nearer."""
        while (left := self._due_in()) > 0:
            self._attendance.noted.clear()
            try:
                async with asyncio.timeout(left):
                    await self._attendance.noted.wait()
            except TimeoutError:
                return

    def _due_in(self) -> float:
        attendance, passed = self._attendance, clock.monotonic() - self._ran_at
        if self._has_failed:
            return _AGAIN - passed
        if attendance.is_due or (attendance.has_gap and self._looked_for != attendance.gaps):
            return 0.0
        return (_EACH if attendance.name or attendance.has_gap else _IDLE) - passed
