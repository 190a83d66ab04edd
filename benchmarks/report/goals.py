"""The goals, each with what was measured and whether it is met."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from benchmarks.own.row import Limit, Row
from benchmarks.report.reasons import REASONS
from benchmarks.rounds import Cell, Results
from benchmarks.works import Goal, Work

FIGURES = {"per_second": "{unit}s/s", "server_cpu_us": "server CPU", "p50_ms": "p50", "p99_ms": "p99"}
"""The names of compared figures: field of a line → words, with the `unit` that is counted."""


class Verdict(msgspec.Struct):
    """One goal: against what, how far, and whether each measurement of it meets it.

    `measured` has the mode of the server → the ratio or the figure; None where there is none.
    """

    work: str
    figure: str
    against: str
    goal: str
    measured: dict[str, float | None]
    met: dict[str, bool]

    @property
    def is_met(self) -> bool | None:
        """Tell whether all that was measured meets the goal; None if nothing was."""
        return all(self.met.values()) if self.met else None

    @property
    def reason(self) -> str:
        """Return why it is not met, in words, if somebody wrote that."""
        return REASONS.get((self.work, self.figure, self.against), "") if self.is_met is False else ""


def ratio(one: Cell, other: Cell, field: str) -> float | None:
    """Return the ratio of two medians."""
    above, below = one.median(field), other.median(field)
    return above / below if above is not None and below else None


def _compared(results: Results, work: Work, goal: Goal) -> Verdict:
    ours = results.plan.sides[0].name
    measured = {
        mode: ratio(results.cell(mode, work, ours), results.cell(mode, work, goal.against), goal.field)
        for mode in results.plan.modes
    }
    met = {
        mode: value >= goal.limit if goal.at_least else value <= goal.limit
        for mode, value in measured.items()
        if value is not None
    }
    text = f"{'≥' if goal.at_least else '≤'} {goal.limit:g} x"
    figure = FIGURES[goal.field].format(unit=work.unit)
    return Verdict(work.title, figure, goal.against, text, measured, met)


def _limited(results: Results, row: Row, limit: Limit) -> Verdict:
    cell = results.own_cell(row, limit.variant)
    base = results.own_cell(row, row.variants[0])
    value = ratio(cell, base, limit.field) if limit.is_ratio else cell.median(limit.field)
    mode = results.plan.modes[0]
    title = next(column.title for column in row.columns if column.field == limit.field)
    # Columns of one title are told apart by what stands before them.
    if title.startswith("its "):
        before = row.columns[[column.field for column in row.columns].index(limit.field) - 1]
        title = f"{before.title.partition(',')[0]}, {title.removeprefix('its ')}"
    return Verdict(
        row.title if len(row.variants) == 1 else f"{row.title}: {limit.variant}",
        title,
        row.variants[0] if limit.is_ratio else "",
        f"≤ {limit.most:g}{' x' if limit.is_ratio else ''}",
        {mode: value},
        {} if value is None else {mode: value <= limit.most},
    )


def verdicts(results: Results) -> Iterator[Verdict]:
    """Yield all goals of what was planned, in the order of the works and rows."""
    sides = {side.name for side in results.plan.sides}
    for work in results.plan.works:
        yield from (_compared(results, work, goal) for goal in work.goals if goal.against in sides)
    for row in results.plan.rows:
        yield from (_limited(results, row, limit) for limit in row.limits)
