"""The words of the model of trees: values, what they are is told in `forest`."""

from __future__ import annotations

from dataclasses import dataclass, field

from snapshots import ENDED

__all__ = ["LEASE", "Node"]

LEASE = 10_000


@dataclass
class Node:
    """One job of a tree. `due` counts while it is delayed."""

    id: str
    root: str
    is_root: bool
    on: str
    up: str
    delay: int
    state: str = "waiting-children"
    needs: set[str] = field(default_factory=set[str])
    graph: set[str] = field(default_factory=set[str])
    """What it needs since it was added."""
    feeds: list[str] = field(default_factory=list[str])
    members: list[str] = field(default_factory=list[str])
    done: list[str] = field(default_factory=list[str])
    noted: list[str] = field(default_factory=list[str])
    """What it added and did not open yet."""
    token: str = ""
    lease_end: int = 0
    due: int = 0
    attempts: int = 0
    stalls: int = 0
    stop: str = ""
    is_gentle: bool = False
    """What runs may finish its attempt though the tree stops."""
    is_acked: bool = False
    knows: bool = False
    is_cancelled: bool = False
    is_pending: bool = False
    broken: str = ""

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED

    def is_held(self, token: str) -> bool:
        return self.state == "active" and self.token == token
