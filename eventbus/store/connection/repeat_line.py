"""The line of calls that are repeated: sent again in the order in which they began, where it counts.

    not connected, or failed -> waits -- is first --> on its way: connects, asks, and again after each pause
                                      -- the server answers, and nobody before it waits --> written
                             -> answered, refused for good, given up or cancelled: out of the line

Each call pauses for a time of its own. Without a line the one with the shortest pause would go first when the
server is back, and jobs would stand in the queue in another order than they were emitted. And each would ask
a dead server.

What must always hold:
- calls that wait are sent in the order of their numbers, also when the connection is lost several times.
  A call waits until it is written; one that has to connect, or asks whether the server is back, until it is
  answered;
- a call keeps its place until whoever gets its error has begun again with a part of it, by the same number;
- a call in the line still ends at its own deadline, and the next one is then the first;
- a call that begins while others wait goes behind them.

Not here: how long a pause is, and when a call is given up (`repeat_policy`).
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable
from operator import attrgetter

from eventbus.model import clock

_number = attrgetter("number")


class RepeatLine:
    """The calls of one caller that go by a task, by their numbers."""

    def __init__(self, is_open: Callable[[], bool]) -> None:
        """`is_open` says whether a call would be written at once, and need not connect first."""
        self._is_open = is_open
        self._places: list[Place] = []
        self._is_answering = False
        """Whether the server answered one of them, and none failed since."""

    @property
    def is_empty(self) -> bool:
        """Whether a call may be sent at once. Otherwise it has to `enter`."""
        return not self._places

    def enter(self, number: int) -> Place:
        """Take a place, which must be left again."""
        place = Place(number)
        bisect.insort(self._places, place, key=_number)
        return place

    def is_first(self, place: Place) -> bool:
        """Return whether nothing stands before it."""
        return self._places[0] is place

    async def wait(self, place: Place, *, deadline: float | None) -> None:
        """Wait until the call may be sent, which must then begin without a further wait.

        Raises TimeoutError at `deadline` (monotonic seconds).
        """
        async with asyncio.timeout(None if deadline is None else deadline - clock.monotonic()):
            while not (self.is_first(place) or self._may_follow(place)):
                place.turn = asyncio.get_running_loop().create_future()
                await place.turn
        place.is_waiting = not (self._is_answering and self._is_open())
        self._wake()

    def _may_follow(self, place: Place) -> bool:
        before = self._places[: self._places.index(place)]
        return self._is_answering and self._is_open() and not any(each.is_waiting for each in before)

    def note_failed(self, place: Place) -> None:
        """Note that a try failed: the call waits again, and so do all others but the first."""
        place.is_waiting, self._is_answering = True, False

    def leave(self, place: Place, *, is_answered: bool) -> None:
        """Give the place up. After an answer all others may go, otherwise the next one is the first."""
        self._places.remove(place)
        self._is_answering = self._is_answering or is_answered
        self._wake()

    def _wake(self) -> None:
        for each in self._places:
            if each.turn is not None and not each.turn.done():
                each.turn.set_result(None)


class Place:
    """The place of one call in the line."""

    __slots__ = ("is_waiting", "number", "turn")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.is_waiting: bool = True
        """Whether those behind it may not go."""
        self.turn: asyncio.Future[None] | None = None
        """Done when the call has to look whether it may go; None until it waits."""
