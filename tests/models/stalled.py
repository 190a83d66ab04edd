"""What the models of jobs and of trees know of the stalls of a job; `stall_model` says how it changes."""

from __future__ import annotations

from dataclasses import dataclass

from models.snapshots import SUSPECT

__all__ = ["Stalled"]


@dataclass(kw_only=True)
class Stalled:
    """A job that somebody may hold."""

    id: str
    token: str = ""
    """Who holds it."""
    claimed: tuple[int, int] = (0, 0)
    """When it was claimed, and its place among the claims of that call."""
    stalls: int = 0
    spared: int = 0
    alone: int = 0
    crowd: int = 0
    fatal: int = 0

    @property
    def is_suspect(self) -> bool:
        return self.stalls - self.spared >= SUSPECT
