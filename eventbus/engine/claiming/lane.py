"""A lane of a worker: a series of numbered calls, of which at most one is under way."""

from __future__ import annotations

__all__ = ["Lane"]


class Lane:
    """One lane, with the number of its last call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.call = 0
        self.done = 0
        """The last call whose claims were started, or whose answer nobody waits for any more."""
        self.is_busy = False
