"""What the children of a machine came to, for the transition that follows them."""

from __future__ import annotations

from typing import Any

import msgspec


class ChildEnd(msgspec.Struct, frozen=True):
    """The end of one child. `state` is that of its flow; `result` is its result if it completed, `error`
    tells why otherwise.
    """

    flow_id: str
    state: str
    result: Any = None
    error: Exception | None = None


class Settled(msgspec.Struct, frozen=True):
    """The ends of all children, in the order in which they were started."""

    children: tuple[ChildEnd, ...]

    @property
    def has_error(self) -> bool:
        """Whether one of them did not complete."""
        return any(child.error is not None for child in self.children)

    @property
    def results(self) -> list[Any]:
        """The results of those that completed."""
        return [child.result for child in self.children if child.error is None]

    @property
    def errors(self) -> list[Exception]:
        """The errors of those that did not."""
        return [child.error for child in self.children if child.error is not None]
