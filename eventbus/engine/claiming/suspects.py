"""The suspects of a worker: jobs that may kill whatever process runs them.

When a worker dies, the jobs that it ran are blamed for it (`store/lua/lib/blame.lua`). A job is a suspect
from its third blame on. Each suspect has a cap, which is a quarter of the number of jobs that shared its last
blame, and at least 1. It is *watched* while it has run no longer than it may have run when it was blamed last
(`fatal`), and a beat more. So a job that kills once more is watched then, and its blame is shared by few.
Jobs that are no suspects run beside them.

    cap 25 ──death──► cap 6 ──death──► cap 1 ──death──► failed, if it was blamed alone
                                                        more than `max_stalls` times in all

What must always hold:
- a worker watches at most as many suspects as the smallest cap among them;
- a suspect with a cap of 1 starts in a worker that watches no other and has started nothing for a
  beat, and nothing starts beside it while it is watched. So who dies with it is known;
- at most one call under way may claim suspects: the answers of two could bring one too many;
- nobody waits for ever. A call of eight asks for suspects first, the others ask for them last
  (`claims.lua`). A suspect that does not fit is looked for again when one that is watched ends, or
  is watched no more, and each 4 s. One with a cap of 1 does not wait for a chance: the worker that
  meets it takes no further suspects, and when it watches none it *makes room*, which means that it
  claims nothing for a beat. Then it takes the suspect alone. Only one worker of a fleet makes room
  for one suspect: the record names it, for a lease.

Crash windows: `room-not-made` (the worker dies or leaves: another one makes room a lease later),
`alone-not-answered` (the answer to the call that takes the suspect is lost: the same call is made again, and
nothing starts meanwhile), `alone-given-up` (that call is given up: a renewal gives back what it claimed,
which is no blame; the next call asks again).

Weighed: all workers that meet such a suspect make room, as in the simulation; but then a fleet of 50 stands
still for a beat because of one job. Times of the server instead of the monotonic clock of the process: a step
of the server's clock would end or lengthen what is watched.

Not here: who is blamed, and which suspects a call may take (`store/lua/lib/suspects.lua`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from eventbus.model import clock
from eventbus.store.scripting.script_rows import TurnAnswer

_MOST = 1000  # suspects that one call may take if none is watched; their caps bound it
_BEAT = 0.3  # of a lease, as in `lease_keeper`


@dataclass(frozen=True, slots=True)
class Ask:
    """What one call may do with suspects: take at most `room`, where `watched` are watched already."""

    room: int = 0
    watched: int = 0
    is_alone: bool = False
    """Whether this worker has made room for one that must be alone."""
    is_claim: bool = False


@dataclass(frozen=True, slots=True)
class _Watch:
    cap: int
    until: float


class SuspectGate:
    """Says which calls of one worker may claim suspects, and when nothing may be claimed at all."""

    def __init__(self, running: Collection[str], *, lease: float, on_room: Callable[[], None]) -> None:
        """`running` has the jobs that the worker runs, `lease` is in seconds. `on_room` is called when more
        may be claimed.
        """
        self._running = running
        self._lease = lease
        self._on_room = on_room
        self._watches: dict[str, _Watch] = {}
        self._lonely: dict[str, float] = {}
        """Queues whose next suspect must be alone, and until when this worker may make room for it."""
        self._passed: set[str] = set()
        """Queues whose suspects a call did not ask for, because the other lane's call might claim some."""
        self._last_start = -float("inf")
        self._claiming = 0
        self._has_asker = False
        self._is_taking = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether this worker may claim jobs now."""
        if not (self._watches or self._lonely):
            return True  # mostly
        watches = self._watched()
        if self._is_taking or any(each.cap == 1 for each in watches):
            return False
        return not self._waits() or bool(watches) or self._is_quiet()

    def find_lonely(self) -> list[str]:
        """Return the queues to ask alone now, because room is made for a suspect of theirs."""
        if (
            not self._lonely
            or self._is_taking
            or self._watched()
            or not self._waits()
            or not self._is_quiet()
        ):
            return []
        return list(self._lonely)

    def ask(self, queues: Collection[str]) -> Ask:
        """Return what the call that asks these queues now may do. `answered` follows it."""
        if not queues:
            return Ask()
        alone = self.find_lonely()
        watches = self._watched()
        self._claiming += 1
        if self._has_asker:
            self._passed.update(queues)
            return Ask(is_claim=True)
        if alone and alone == [*queues][: len(alone)]:
            self._has_asker = self._is_taking = True
            return Ask(_MOST, 0, is_alone=True, is_claim=True)
        caps = [each.cap for each in watches]
        room = 0 if self._waits() else min(caps, default=_MOST) - len(caps)
        self._has_asker = room > 0
        return Ask(max(0, room), len(caps), is_claim=True)

    def answered(self, ask: Ask) -> None:
        """Note that a call ended, or is given up."""
        self._claiming -= ask.is_claim
        if ask.room:
            self._has_asker = False
        if ask.is_alone:
            self._is_taking = False
            self._lonely.clear()  # what must still be alone is told by the answer

    def note(self, ask: Ask, answer: TurnAnswer, queues: Iterable[str]) -> set[str]:
        """Take over an answer, once its claims are in `running`; `queues` are those of the call.

        Returns queues to look at again.
        """
        now = clock.monotonic()
        if answer.claims:
            self._last_start = now
        names = list(queues) if answer.lonely else []
        for row in answer.watches:
            self._watches[row.id] = _Watch(row.cap, now + row.fatal / 1000 + _BEAT * self._lease)
        for place in answer.lonely:
            self._lonely[names[place - 1]] = now + self._lease
        if answer.watches or answer.lonely:
            self._arm()
        passed: set[str] = set()
        if ask.room and not self._watches:
            passed, self._passed = self._passed, passed
        return passed

    def started(self) -> None:
        """Note that a job started without a claim."""
        self._last_start = clock.monotonic()

    def ended(self, job_id: str) -> None:
        """Note that a job ended here."""
        if self._watches.pop(job_id, None) is not None:
            self._on_room()  # suspects may have been left in any queue

    def next_change(self) -> float | None:
        """Return in how many seconds more may be claimed though no job ends before; None if that is no
        question of time.
        """
        now = clock.monotonic()
        ends = [each.until for each in self._watched()]
        if not ends and self._waits():
            ends = [self._last_start + _BEAT * self._lease]
        return min(ends) - now if ends and min(ends) >= now else None

    def close(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watched(self) -> list[_Watch]:
        """Return what is watched now; forget what is watched no more, or ended without a word."""
        if self._watches:
            now = clock.monotonic()
            self._watches = {
                job: each for job, each in self._watches.items() if now <= each.until and job in self._running
            }
        return list(self._watches.values())

    def _waits(self) -> bool:
        """Return whether a suspect waits that must be alone."""
        if self._lonely:
            now = clock.monotonic()
            self._lonely = {queue: until for queue, until in self._lonely.items() if now <= until}
        return bool(self._lonely)

    def _is_quiet(self) -> bool:
        """Return whether nothing was started for a beat, and nothing is on its way. Where nothing runs,
        nothing can die.
        """
        if self._claiming:
            return False
        return not self._running or clock.monotonic() - self._last_start >= _BEAT * self._lease

    def _arm(self) -> None:
        self.close()
        pause = self.next_change()
        if pause is not None:
            self._timer = asyncio.get_running_loop().call_later(pause + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._arm()
        self._on_room()
