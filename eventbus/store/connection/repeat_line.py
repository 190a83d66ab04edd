"""The line of calls that are repeated: sent again in the order in which they began, where it counts.

    not connected, or failed -> first: tries, and again after each pause -- answered --> all behind it go
                             -> behind others: waits, and sends nothing, until it is first or they go
                             -> answered, refused for good, given up or cancelled: out of the line

Each call pauses for a time of its own. Without a line the one with the shortest pause would go first when the
server is back, and jobs would stand in the queue in another order than they were emitted. And each would ask
a dead server.

What must always hold:
- calls that wait are sent in the order of their numbers, also when the connection is lost several times;
- a call in the line still ends at its own deadline, and the next one is then the first;
- a call that begins while others wait goes behind them.

Not here: how long a pause is, and when a call is given up (`repeat_policy`).
"""

from __future__ import annotations

import asyncio
import bisect
from operator import attrgetter

from eventbus.model import clock

__all__ = ["Place", "RepeatLine"]

_number = attrgetter("number")


class RepeatLine:
    """The calls of one caller that go by a task, by their numbers."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._is_flowing = False
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
        """Wait until all before it have ended, or may go. Raises TimeoutError at `deadline` (monotonic s)."""
        async with asyncio.timeout(None if deadline is None else deadline - clock.monotonic()):
            while not self._is_flowing and not self.is_first(place):
                place.turn = asyncio.get_running_loop().create_future()
                await place.turn

    def note_failed(self) -> None:
        """Note that a try failed: all but the first wait again."""
        self._is_flowing = False

    def leave(self, place: Place, *, is_answered: bool) -> None:
        """Give the place up. After an answer all others may go, otherwise the next one is the first."""
        self._places.remove(place)
        self._is_flowing = self._is_flowing or is_answered
        for behind in self._places if self._is_flowing else self._places[:1]:
            behind.wake()


class Place:
    """The place of one call in the line."""

    __slots__ = ("number", "turn")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.turn: asyncio.Future[None] | None = None
        """Done when the call has to look whether it may go; None unless it waits."""

    def wake(self) -> None:
        """Let the call look whether it may go."""
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)
