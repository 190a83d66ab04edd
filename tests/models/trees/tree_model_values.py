"""The values of the tree model; `tree_model` says how they change."""

from __future__ import annotations

from dataclasses import dataclass, field

from models.job_model_values import Stalled
from models.snapshots import ENDED

__all__ = ["LEASE", "Node", "is_of"]

LEASE = 10_000


@dataclass
class Node(Stalled):
    """One job of a tree. `due` only matters while the job is delayed."""

    id: str
    root: str
    is_root: bool
    on: str
    up: str
    delay: int
    state: str = "waiting-children"
    needs: set[str] = field(default_factory=set[str])
    graph: set[str] = field(default_factory=set[str])
    """The jobs that it needed when it was added."""
    feeds: list[str] = field(default_factory=list[str])
    members: list[str] = field(default_factory=list[str])
    done: list[str] = field(default_factory=list[str])
    noted: list[str] = field(default_factory=list[str])
    """The members that it added and has not opened yet."""
    waited: str = ""
    """The token by which it began to wait for children, until it is claimed again."""
    due: int = 0
    attempts: int = 0
    stop: str = ""
    is_gentle: bool = False
    """Whether running members may finish their attempt although the tree stops."""
    is_acked: bool = False
    knows: bool = False
    is_cancelled: bool = False
    """Whether this job alone was cancelled, and not its tree."""
    is_pending: bool = False
    broken: str = ""

    def forget_counts(self) -> None:
        """Undoing has counts of its own."""
        self.attempts = self.stalls = self.spared = self.alone = self.crowd = self.fatal = 0

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED

    def awaits(self, child: str) -> bool:
        """Return whether it waits for this child, be it for all that it needs or for the first of them."""
        return not self.needs.isdisjoint((child, f"#{child}"))

    def is_held(self, token: str) -> bool:
        return self.state == "active" and self.token == token

    def is_held_by(self, lane: str) -> bool:
        """Return whether the worker of this lane runs it."""
        return self.state == "active" and is_of(self.token, lane)


def is_of(token: str, lane: str) -> bool:
    """Return whether the token is one of the worker of this lane."""
    return token.partition(":")[0].rstrip("+") == lane.rstrip("+")
