"""Pieces of durable functions, made from a seed: the same in every process.

A `Piece` is a part of a function: a call of a task, a sleep, a wait for a signal, a map, a flow of its own,
or pieces one after the other, side by side, against each other, or in a `try`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

__all__ = ["Piece", "make_body"]

Kind = Literal["call", "sleep", "wait", "limited", "derived", "map", "flow", "row", "gather", "race", "catch"]

_SHARES: dict[Kind, int] = {
    "call": 50,
    "sleep": 8,
    "wait": 8,
    "limited": 6,
    "derived": 5,
    "map": 10,
    "flow": 8,
    "gather": 9,
    "race": 9,
    "catch": 7,
}
_GROUPS: tuple[Kind, ...] = ("gather", "race", "catch")
_DEEPEST = 2


class Piece(msgspec.Struct, frozen=True):
    """A part of a function. `name` is that of its act, `size` the items of a map, or the ms of a sleep or of
    a limit.
    """

    kind: Kind
    name: str = ""
    task: str = ""
    size: int = 0
    limit: int = 1
    is_local: bool = False
    parts: tuple[Piece, ...] = ()
    flow: Any = None
    """The Workflow or the Function that is started."""

    @property
    def acts(self) -> list[str]:
        """The names of what the calls of this piece itself do."""
        if self.kind == "map":
            return [f"{self.name}[{index}]" for index in range(self.size)]
        return [self.name] if self.kind == "call" else []

    def all(self) -> Iterator[Piece]:
        """This piece and all in it, without those of the flows that it starts."""
        yield self
        for part in self.parts:
            yield from part.all()

    def count(self, kind: Kind) -> int:
        """Return how many pieces of a kind are in it."""
        return sum(piece.kind == kind for piece in self.all())


def make_body(
    name: str, rng: random.Random, tasks: Sequence[str], flows: Sequence[Any], *, size: int
) -> Piece:
    """Make the code of a function of `size` pieces, which starts some of `flows`. Only one that starts many
    waits for signals.
    """
    maker = _Maker(rng, tasks, flows, {} if len(flows) > 1 else {"wait": 0})
    first = Piece("call", f"{name}.first", rng.choice(tasks))
    return Piece("row", name, parts=(first, *maker.row(name, size, depth=0).parts))


class _Maker:
    def __init__(
        self, rng: random.Random, tasks: Sequence[str], flows: Sequence[Any], shares: dict[Kind, int]
    ) -> None:
        self._rng = rng
        self._tasks = tasks
        self._flows = flows
        self._shares: dict[Kind, int] = {**_SHARES, **shares}

    def row(self, name: str, size: int, *, depth: int) -> Piece:
        return Piece("row", name, parts=tuple(self._piece(f"{name}.{n}", depth=depth) for n in range(size)))

    def _piece(self, name: str, *, depth: int) -> Piece:
        rng = self._rng
        left = [depth < _DEEPEST or kind not in _GROUPS for kind in self._shares]
        shares = [share * is_left for share, is_left in zip(self._shares.values(), left, strict=True)]
        kind = rng.choices(list(self._shares), shares)[0]
        chosen = rng.choices(self._tasks, [70, 15, 15][: len(self._tasks)])[0]
        if kind in ("sleep", "limited"):
            return Piece(kind, name, size=rng.randint(1, 300))
        if kind == "map":
            size, limit = rng.randint(0, 4), rng.randint(1, 3)
            return Piece(kind, name, chosen, size, limit, is_local=rng.random() < 0.4)
        if kind == "flow":
            return Piece(kind, name, flow=rng.choice(self._flows))
        if kind in _GROUPS:
            many = 1 if kind == "catch" else rng.randint(2, 3)
            parts = [self._part(f"{name}.{n}", depth=depth + 1) for n in range(many)]
            return Piece(kind, name, parts=tuple(parts))
        return Piece(kind, name, chosen)

    def _part(self, name: str, *, depth: int) -> Piece:
        """Make a part of a group: a branch, or one call alone."""
        row = self.row(name, self._rng.randint(1, 2), depth=depth)
        return row.parts[0] if len(row.parts) == 1 and self._rng.random() < 0.6 else row
