"""The columns of a queue's history: plain numbers, of which a template makes SVG. Each column is a minute."""

from __future__ import annotations

from typing import NamedTuple

from eventbus.dashboard.desk.history import HistoryView

_HEIGHT = 60
_WIDTH = 10


class Column(NamedTuple):
    """One minute: `good` and `bad` are the heights of what completed and of what did not, from below."""

    x: int
    good: float
    bad: float
    completed: int
    failed: int
    at_ms: int


class Columns(NamedTuple):
    """All columns, and what they add up to."""

    columns: list[Column]
    width: int
    height: int
    most: int
    completed: int
    failed: int


def stack(view: HistoryView) -> Columns | None:
    """Return the columns of a history; None if nothing ended in it."""
    ends = [(each, each.failed + each.cancelled + each.expired) for each in view.periods]
    most = max((each.completed + bad for each, bad in ends), default=0)
    if not most:
        return None
    scale = _HEIGHT / most
    columns = [
        Column(
            place * _WIDTH,
            round(each.completed * scale, 1),
            round(bad * scale, 1),
            each.completed,
            bad,
            each.at_ms,
        )
        for place, (each, bad) in enumerate(ends)
    ]
    completed, failed = sum(each.completed for each, _ in ends), sum(bad for _, bad in ends)
    return Columns(columns, len(columns) * _WIDTH, _HEIGHT, most, completed, failed)
