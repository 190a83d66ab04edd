"""The health of one worker at one moment: facts about it, and the problems that follow from them.

A worker is alive while a restart would not help it. It is ready while it claims and settles jobs.
A Health is read from any thread, also while the event loop is blocked. Not here: the probes that serve it.
"""

from __future__ import annotations

import msgspec

HEARD_WITHIN = 10.0
"""Seconds; an idle worker gets an answer of the server each 4 s, so two answers in a row are missing then."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one worker at one moment. Times are in seconds."""

    worker: str
    queues: list[str]
    running: int
    """How many jobs run."""
    lag: float
    """For how long the event loop has been blocked; 0 while it answers."""
    answered: float | None
    """Time since the server last answered a turn or a wake read; None before the first answer."""
    connected: bool
    """Whether the command connection to the server stands."""
    draining: bool
    """Whether a stop was requested."""
    ended: bool
    leases_kept: bool
    """False only if the thread that renews leases died while the worker runs."""
    abandoned: int
    """How many handlers ignored their cancellations, so that the worker gave up on them."""
    refused: int
    """How many outcomes the server did not record because the lease was lost."""
    hang_after: float
    """A worker whose event loop is blocked for longer is no longer alive."""
    max_abandoned: int
    """A worker that gave up on this many handlers is no longer alive."""

    @property
    def liveness_problems(self) -> list[str]:
        """The reasons to restart the worker; empty while it is alive."""
        found: list[str] = []
        if self.lag > self.hang_after:
            found.append(f"the event loop has been blocked for {self.lag:.0f} s (hang_after)")
        if not self.leases_kept:
            found.append("the lease thread has ended")
        if self.abandoned >= self.max_abandoned:
            found.append(f"{self.abandoned} handlers ignored their cancellation")
        return found

    @property
    def readiness_problems(self) -> list[str]:
        """The reasons why the worker claims nothing now; empty while it is ready."""
        found = self.liveness_problems
        if self.ended:
            found.append("it has ended")
        elif self.draining:
            found.append("it is draining")
        if self.answered is None:
            found.append("the server has not answered it yet")
        elif self.answered > HEARD_WITHIN:
            found.append(f"the server has not answered it for {self.answered:.0f} s")
        return found
