"""The gauge board: the last readings of what metrics show as gauges.

A worker writes its readings here, in its event loop. The exporter of the program's SDK reads them, in a
thread of its own, and so it waits for nobody. Rows of several boards of one process with the same attributes
become one.

What must always hold: a reading replaces the former one of its metric whole, so that the exporter sees one
moment.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Row: TypeAlias = tuple[float, Mapping[str, str | int]]
"""A value and its attributes."""


class GaugeBoard:
    """The readings of one worker."""

    def __init__(self) -> None:
        self._rows: dict[str, Sequence[Row]] = {}
        self._sources: dict[str, Callable[[], Iterable[Row]]] = {}

    def show(self, metric: str, rows: Sequence[Row]) -> None:
        """Replace the readings of a metric."""
        self._rows[metric] = rows

    def show_live(self, metric: str, read: Callable[[], Iterable[Row]]) -> None:
        """Read a metric when the exporter asks for it. `read` is called in its thread and must not wait."""
        self._sources[metric] = read

    def clear(self, *metrics: str) -> None:
        """Show these metrics no more."""
        for metric in metrics:
            self._rows.pop(metric, None)

    def read(self, metric: str) -> Iterable[Row]:
        """Return the readings of a metric; called from any thread."""
        source = self._sources.get(metric)
        return self._rows.get(metric, ()) if source is None else source()


boards: dict[GaugeBoard, asyncio.Task[Any] | None] = {}
"""The boards of the workers that run in this process, each with the task that keeps it.

There is one dictionary for the process, as there is one SDK for it.
"""
os.register_at_fork(after_in_child=boards.clear)  # the workers of the parent do not run in its child


def read_rows(metric: str, combine: Callable[[float, float], float]) -> list[Row]:
    """Return the readings of a metric in this process; `combine` makes one value of two with the same
    attributes.
    """
    found: dict[tuple[tuple[str, str | int], ...], float] = {}
    for board in list(boards):
        for value, attributes in board.read(metric):
            place = tuple(sorted(attributes.items()))
            found[place] = combine(found[place], value) if place in found else value
    return [(value, dict(place)) for place, value in found.items()]
