"""The attendance of an emitter: up to when it has got all outcomes, so that the server need keep them no
longer.

    absent -- an add or a join says the name --> attending, its floor rises -- quiet for a second --> absent

While it attends, the emitter stands in `emitters` with its floor, a time of the server. Finished jobs that
ended before the lowest floor of all emitters may go at once; without floors each would stay for 120 s, which
is 1 GB at 20,000 jobs a second (`lua/lib/floors.lua`).

Not here: the calls (`stream_keeper`). This object does no I/O; the wait list says what is awaited.

A mark is an entry that a call of the emitter adds to its own reply stream; the answer of that call says its
time.

What must always hold:
- an outcome that an emission of this process may still need has not ended before the floor. So the emitter
  stands in `emitters` before the records exist that it awaits: each add says its name until the server has
  confirmed it, and once a second after that. And the floor rises to the time of a mark only when
    - the mark was read from the stream, and so all outcomes of calls before it, which ended before that time;
    - those that the stream only announced were read from their records;
    - jobs were looked up whose end is not told, because too many wait for them;
    - no gap is open: nothing was lost with a stream or a connection that was not looked up since;
    - each add that was sent before the answer to the mark is answered or given up. Such an add may
      be repeated. If its job had run and was forgotten meanwhile, the repeat would be a new job,
      and run again. So adds without a reply count;
- a floor is held back by nothing for ever: each of these ends by an answer or by a deadline, and
  the server counts no floor older than 120 s;
- each attendance has a name of its own, the emitter and a number. A late copy of a call about an
  older one, such as its end, changes nothing of this one.

Crash windows:
    `emitter-dies-awaiting`   its floor rises no more: 120 s later it holds nothing back
    `emitter-hangs`           the same: what it awaits may be gone 120 s after the end. Outcomes that
                              the stream carries are read even then, for its 10 minutes; the others
                              raise UnknownJob
    `emitter-quiet-too-soon`  its next add says a new name before its records exist
    `early-dropped`           an outcome that overtook the answer to its add, and did not fit in what
                              is held back, is looked up when the answer comes, and the floor waits
                              for that look (`wait_list`)
    `forgotten-by-failover`   a server that lost the entry hears the name again with the next add or
                              call, within a second

Rejected: the id of the last entry as the time, because it comes from another clock than the ends of jobs; a
mark in each entry of outcomes, which each settle would pay for; a floor that rises with each emission, which
is a call for each.
"""

from __future__ import annotations

import asyncio

from eventbus.emit.wait_list import WaitList
from eventbus.model import clock

_QUIET = 1.0  # seconds without anything awaited, after which the emitter leaves
_SAY_EACH = 1.0  # seconds; an add says the name again, should the server have lost it
_MANY = 1000  # outcomes after which the floor is raised without waiting for the next second


class Attendance:
    """What one emitter awaits, as the server is to know it."""

    def __init__(self, emitter: str, waits: WaitList) -> None:
        self.name: str = ""
        """Under which it stands in `emitters`, `''` while it is absent."""
        self.noted: asyncio.Event = asyncio.Event()
        """Set when the keeper of the stream has to look when its next call is due."""
        self._emitter = emitter
        self._waits = waits
        self._count = 0
        self._is_known = False
        self._said_at = 0.0
        self._active_at = 0.0
        self._calls = 0
        self._owed: dict[int, None] = {}
        """The adds whose answer is owed, in the order in which they were sent."""
        self._gaps = 1
        """How many gaps there were: one at first, because there was no stream yet."""
        self._closed = 0
        """The last gap that was closed."""
        self._whole_from: int | None = None
        """The last add that may have been carried out before the stream was there again, None until it is."""
        self._mark = 0
        self._time: int | None = None
        """The server's time when it made the last mark, None while its answer is owed."""
        self._last_call = 0
        """The last add that may have been carried out before the last mark."""
        self._is_read = False
        self._announced = 0
        """How many announced outcomes stood before the last mark."""
        self._is_asked = False
        """Whether the jobs whose end is not told were looked up since the last mark."""
        self._outcomes = 0
        """How many outcomes were read since the last mark was sent."""

    # adds and joins

    def begin_call(self) -> int:
        """Note an add that is sent now, and return its number for `end_call`."""
        self._calls += 1
        self._owed[self._calls] = None
        return self._calls

    def end_call(self, number: int) -> None:
        """Note that an add was answered or given up, so that it will not be repeated."""
        self._owed.pop(number, None)
        self._active_at = clock.monotonic()

    def say(self) -> str:
        """Return the name that an add has to say, `''` if it was said lately. Begins to attend."""
        now = clock.monotonic()
        self._attend(now)
        if self._is_known and now - self._said_at < _SAY_EACH:
            return ""
        self._said_at = now
        return self.name

    def say_always(self) -> str:
        """Return the name for a call that is rare. Begins to attend."""
        self._attend(clock.monotonic())
        return self.name

    def confirm(self, name: str) -> None:
        """Note that the server knows the name."""
        self._is_known = self._is_known or (bool(name) and name == self.name)

    def _attend(self, now: float) -> None:
        self._active_at = now
        if not self.name:
            self._count += 1
            self.name = f"{self._emitter}:{self._count}"
            self._is_known = False
            self.noted.set()

    # the end

    def leave(self) -> str:
        """Be absent if nothing was awaited for a second; return the name to take out, else `''`."""
        now = clock.monotonic()
        waits = self._waits
        if waits.jobs or waits.unread or self._owed:
            self._active_at = now
        if not self.name or now - self._active_at < _QUIET:
            return ""
        return self.quit()

    def quit(self) -> str:
        """Be absent at once; return the name to take out, `''` if there is none."""
        name, self.name = self.name, ""  # before the call: an add from here on begins a new attendance
        return name

    # marks

    @property
    def floor(self) -> int | str:
        """The server's time up to which all outcomes were got, `''` if it may not rise yet."""
        time = self._time
        may_rise = (
            time is not None
            and self._is_read
            and not self.has_gap
            and self._waits.looked >= max(self._announced, self._waits.late)
            and (self._is_asked or not self._waits.unlisted)
            and not self._has_owed(self._last_call)
        )
        return time if may_rise and time is not None else ""

    @property
    def made_mark(self) -> int:
        """The last mark, 0 while the answer to its call is owed."""
        return 0 if self._time is None else self._mark

    def next_mark(self) -> int | str:
        """Return the mark that the next call makes, `''` while the last one is still to be used, or a gap is
        open.
        """
        if self.has_gap or (self._time is not None and self.floor == ""):
            return ""
        self._mark += 1
        self._time = None
        self._is_read = self._is_asked = False
        self._outcomes = 0
        return self._mark

    def note_made(self, time: int) -> None:
        """Note that the last mark was made at this time. Only the answer says which adds may have come before
        it.
        """
        self._time, self._last_call = time, self._calls

    def note_read(self, mark: int, outcomes: int) -> None:
        """Note what a read brought: so many outcomes, and this mark, 0 for none."""
        if mark and mark == self._mark:
            self._is_read = True
            self._announced = self._waits.announced
        self._outcomes += outcomes
        if self._outcomes >= _MANY:
            self.noted.set()

    def note_asked(self, mark: int) -> None:
        """Note that the jobs whose end is not told were looked up; `mark` was made before that look began."""
        self._is_asked = bool(mark) and mark == self._mark

    def note_nothing(self) -> None:
        """Note that a read met the end of the stream. A mark that was made must have been there."""
        if self._time is not None and not self._is_read:
            self.note_gap()

    @property
    def is_due(self) -> bool:
        """Whether the floor can rise over many outcomes, or a mark has to be made for that."""
        is_free = self._time is None and not self.has_gap
        return bool(self.name) and self._outcomes >= _MANY and (is_free or self.floor != "")

    # gaps

    @property
    def has_gap(self) -> bool:
        """Whether outcomes may have been lost that were not looked up since."""
        return self._closed != self._gaps

    @property
    def gaps(self) -> int:
        """How many gaps there were."""
        return self._gaps

    def note_gap(self) -> None:
        """Note that outcomes may be lost, and that the server may have forgotten the name."""
        self._gaps += 1
        self._whole_from = None
        self._is_known = False
        self.noted.set()

    def note_whole(self) -> None:
        """Note that the stream is there. What is added from here on is told in it."""
        if self._whole_from is None:
            self._whole_from = self._calls

    def begin_look(self) -> int:
        """Return the gap that a look at all that is awaited closes if it begins now, 0 for none.

        An emission that an add brought from before the stream was there can be looked up once that add is
        answered.
        """
        is_early = self._whole_from is None or self._has_owed(self._whole_from)
        return 0 if is_early else self._gaps

    def end_look(self, gap: int) -> None:
        """Note the end of the look that closes the gap."""
        if gap == self._gaps:
            self._closed = gap
            self._time = None  # a mark of before may be lost, or stand before what was

    def _has_owed(self, last: int) -> bool:
        """Whether an add is not answered that was sent up to number `last`."""
        first = next(iter(self._owed), None)
        return first is not None and first <= last
