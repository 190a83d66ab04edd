"""The timer of a worker for the time when the earliest delayed job is due, because turns promote delayed
jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from eventbus.runtime.upkeep import marked

_LONGEST = 3600.0
"""Seconds after which the server is asked again, because its clock may be moved, and machines sleep."""


class DueTimer:
    """Says when a turn is due although no queue is known to have work."""

    def __init__(self, on_due: Callable[[], None]) -> None:
        """`on_due` is called when the time has come."""
        self.is_due: bool = False
        """Whether a turn is due; whoever takes one sets it back."""
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_known(self) -> bool:
        """Whether a due time is known for which no turn was taken."""
        return self.is_due or self._timer is not None

    def expect(self, next_due: int, now: int) -> None:
        """Plan for a due time, both in ms of the server; -1 if nothing is due."""
        self.close()
        if next_due < 0:
            return
        seconds = (next_due - now) / 1000
        if seconds <= 0:
            self.is_due = True  # more jobs were due than one turn promotes
        elif seconds <= _LONGEST:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.ring)
        else:
            with marked("always"):
                self._timer = asyncio.get_running_loop().call_later(_LONGEST, self.ring)

    def close(self) -> None:
        """Plan for nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def ring(self) -> None:
        """Say that the time has come."""
        self.close()
        self.is_due = True
        self._on_due()
