"""What a row of our own is: variants of one measurement, their figures, and the goals on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from benchmarks.own.lab import Lab


class Column(msgspec.Struct, frozen=True):
    """One figure of a row: a name in what `measure` gives, and how it is called."""

    field: str
    title: str


class Limit(msgspec.Struct, frozen=True):
    """A goal: a figure of a variant is at most `most`, or at most `most` times the first variant's."""

    field: str
    variant: str
    most: float
    is_ratio: bool = False


class Row(Protocol):
    """One measurement of our side; the first variant is what others are a ratio of."""

    @property
    def name(self) -> str:
        """The word of `--only`."""
        ...

    @property
    def title(self) -> str:
        """What it measures, for the page."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its figures."""
        ...

    @property
    def variants(self) -> tuple[str, ...]:
        """What is compared; the first one is the base."""
        ...

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Its goals."""
        ...

    @property
    def most_rounds(self) -> int:
        """In how many rounds it is measured, at most."""
        ...

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Run one round; yields variants with figures, a variant perhaps in parts."""
        ...


def flat_costs(variant: str, *fields: str) -> tuple[Limit, ...]:
    """Return the goals that say: this variant costs at most 1.3 times what the first one does."""
    return tuple(Limit(field, variant, 1.3, is_ratio=True) for field in fields)
