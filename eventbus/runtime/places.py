"""The places of a pool: how many functions may run in it at a time.

What must always hold: a place that was given is given back once; places go to those who wait in the order of
their requests; a call that is cancelled while it waits takes none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Places:
    """A number of places, given in the order of the requests."""

    def __init__(self, count: int, on_room: Callable[[], None] | None = None) -> None:
        """`on_room` is called when a place is free or a line goes on, and when one begins: one more job may
        come then.
        """
        self._free = count
        self._on_room = on_room
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> int:
        """How many places are free now."""
        return max(self._free, 0)

    @property
    def has_line(self) -> bool:
        """Whether somebody waits for a place."""
        return bool(self._line)

    def enter(self) -> bool:
        """Take a place; return False if none is free."""
        if self._free < 1:  # whoever waits in the line was given what was free
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Wait for a place and take it. A cancelled call takes none."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        self._hand_out()
        if len(self._line) == 1:
            self._tell()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # the place and the cancellation came in the same moment
            raise

    def keep(self) -> None:
        """Take a place although none is free, for a function that outlives its caller, which gives back its
        own.
        """
        self._free -= 1

    def leave(self) -> None:
        """Give a place back."""
        self._free += 1
        self._hand_out()
        if self._free > 0 or self._line:
            self._tell()

    def _tell(self) -> None:
        if self._on_room is not None:
            self._on_room()

    def _hand_out(self) -> None:
        while self._free > 0 and self._line:
            turn = self._line.popleft()
            if not turn.cancelled():
                self._free -= 1
                turn.set_result(None)
