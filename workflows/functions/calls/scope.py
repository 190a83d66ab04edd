"""Scopes: the function itself and each of its branches, with the numbers from which positions are made.

What must always hold: the code of one scope is sequential, so its n-th call is the same one in each replay.
Its time, its length of history, its random numbers and its ids follow from the recorded calls that it has
seen, and from its name.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from workflows.functions.calls.call import Call
    from workflows.functions.calls.emit_call import EmitCall

__all__ = ["Mark", "Scope"]

C = TypeVar("C", bound="Call[Any]")


class Mark(NamedTuple):
    """How far a scope has come: its time in ms, the number of its last entry, and the bytes of history up to
    there.
    """

    time_ms: int
    number: int = 0
    size: int = 0

    def merged(self, other: Mark) -> Mark:
        """Return the later one of both in each respect."""
        if other.number >= self.number and other.time_ms >= self.time_ms and other.size >= self.size:
            return other  # by far the most frequent case
        return Mark(
            max(self.time_ms, other.time_ms), max(self.number, other.number), max(self.size, other.size)
        )


class Scope:
    """One sequential piece of code. `name` is empty for the function itself, else the position of the
    branch.
    """

    __slots__ = (
        "_ids",
        "_random",
        "count",
        "emissions",
        "has_news",
        "is_ended",
        "is_started",
        "key",
        "mark",
        "name",
        "routine",
        "unawaited",
        "waiting",
    )

    def __init__(self, name: str, routine: Coroutine[Any, Any, Any], mark: Mark, key: str) -> None:
        """Run `routine`; random numbers and ids follow from `key`, which a retry by hand does not change."""
        self.name: str = name
        self.routine: Coroutine[Any, Any, Any] = routine
        self.mark: Mark = mark
        self.key: str = key
        self.count: int = 0
        self.is_started: bool = False
        self.is_ended: bool = False
        self.has_news: bool = False
        """Whether the live state was set since the last recorded call."""
        self.waiting: Call[Any] | None = None
        self.unawaited: dict[str, Call[Any]] = {}
        self.emissions: list[EmitCall[Any]] = []
        """Emissions that the code has not awaited; they are sent before its next call."""
        self._random: random.Random | None = None
        self._ids = 0

    def position(self, number: int) -> str:
        """Return the position of a call of this scope by its number."""
        return f"{self.name}.{number}" if self.name else str(number)

    def expect(self, call: C) -> C:
        """Return a call of this scope that is made: its code must await it."""
        self.unawaited[call.position] = call
        return call

    def take(self) -> str:
        """Return the position of the next call."""
        self.count += 1
        return self.position(self.count - 1)

    @property
    def random(self) -> random.Random:
        """Random numbers, the same ones in each replay."""
        if self._random is None:
            self._random = random.Random(f"{self.key}/{self.name}")
        return self._random

    def uuid(self) -> uuid.UUID:
        """Return the next id, the same one in each replay."""
        self._ids += 1
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{self.key}/{self.name}/{self._ids}")
