"""The health of one worker at a moment: facts, and what they mean to whoever watches it.

Alive: a restart would not help. Ready: it claims and settles now. Read from any thread,
also while the event loop is blocked. Not here: how it is asked for.
"""

from __future__ import annotations

import msgspec

__all__ = ["HEARD_WITHIN", "Health"]

HEARD_WITHIN = 10.0
"""Seconds; an idle worker's server answers each 4 s, so this is two missed answers."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a worker. Times in seconds."""

    worker: str
    queues: list[str]
    running: int
    """Jobs that run."""
    lag: float
    """How long the event loop has not answered."""
    answered: float | None
    """Since the server last answered a turn or a wake read; None: not yet."""
    connected: bool
    draining: bool
    ended: bool
    leases_kept: bool
    """Whether the thread that renews leases lives, as long as the worker does."""
    abandoned: int
    """Handlers that ignored their cancellations."""
    refused: int
    """Outcomes that were not recorded, for the lease was lost."""
    hang_after: float
    max_abandoned: int

    @property
    def ailments(self) -> list[str]:
        """Why it should be restarted; empty while it is alive."""
        found: list[str] = []
        if self.lag > self.hang_after:
            found.append(f"the event loop has been blocked for {self.lag:.0f} s (hang_after)")
        if not self.leases_kept:
            found.append("the lease thread has ended")
        if self.abandoned >= self.max_abandoned:
            found.append(f"{self.abandoned} handlers ignored their cancellation")
        return found

    @property
    def hindrances(self) -> list[str]:
        """Why it claims nothing now; empty while it is ready."""
        found = self.ailments
        if self.ended:
            found.append("it has ended")
        elif self.draining:
            found.append("it is draining")
        if self.answered is None:
            found.append("the server has not answered it yet")
        elif self.answered > HEARD_WITHIN:
            found.append(f"the server has not answered it for {self.answered:.0f} s")
        return found
