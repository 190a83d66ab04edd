"""Upkeep: what a process does again and again only so that things stay as they are.

Its timers carry a mark, which nothing reads in production. The test kit reads it: where nothing else happens
for days, it leaps over these timers, and lets each fire once before it stops.

    always   presence, sweeps, history: nobody waits for them
    idle     beats of leases and the rescue: only while no job runs and none was lost
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Upkeep = Literal["", "always", "idle"]

upkeep: ContextVar[Upkeep] = ContextVar("upkeep", default="")
"""The mark of the timers that are set now."""


def mark(kind: Upkeep) -> None:
    """Mark all timers that the running task sets from now on. The first line of a role of upkeep."""
    upkeep.set(kind)


@contextmanager
def marked(kind: Upkeep) -> Generator[None]:
    """Mark the timers that are set inside."""
    token = upkeep.set(kind)
    try:
        yield
    finally:
        upkeep.reset(token)
