"""A lane of a worker: a series of numbered calls, of which at most one is under way."""

from __future__ import annotations

import sys

from eventbus.model import clock
from eventbus.telemetry.send_meter import note_turn


class Lane:
    """One lane, with the number of its last call."""

    def __init__(self, name: str, address: str) -> None:
        """`address` is that of the server, for metrics."""
        self.name: str = name
        self._address = address
        self._since = 0.0
        self.call: int = 0
        self.done: int = 0
        """The last call whose claims were started, or whose answer nobody waits for any more."""
        self.is_busy: bool = False

    def begin(self) -> None:
        """Begin the next call."""
        self.is_busy = True
        self.call += 1
        self._since = clock.monotonic()

    def end(self) -> None:
        """Note that the call has ended; with the error that is being handled, if there is one."""
        self.is_busy = False
        note_turn(self._address, self._since, sys.exception())
