"""Interleaved rounds: each work on each side in turn, the server emptied in between.

Absolute figures drift on a shared machine; a ratio of medians of neighbours in time does so
much less. A side that fails once in a work is left out of its further rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from statistics import median

import msgspec

from benchmarks.measure import Line
from benchmarks.programs import ProgramError, measured, started
from benchmarks.server import Server, running
from benchmarks.sides import Side
from benchmarks.works import Work


class Plan(msgspec.Struct):
    """What a run measures, and how much of it; `program` is the server's."""

    sides: list[Side]
    works: list[Work]
    modes: list[str]
    count: int
    rounds: int
    program: str


class Cell(msgspec.Struct):
    """What one side did in one work: a line for each round, or the error that ended it."""

    lines: list[Line] = []
    error: str | None = None

    def values(self, field: str) -> list[float]:
        """Return a figure of each round; none if the side failed."""
        return (
            []
            if self.error
            else [value for line in self.lines if (value := getattr(line, field)) is not None]
        )

    def median(self, field: str) -> float | None:
        """Return the median of a figure over the rounds; None if it was not measured."""
        values = self.values(field)
        return median(values) if values else None


class Results(msgspec.Struct):
    """All that was measured: (mode, work, side) → cell, and the server it ran on."""

    plan: Plan
    cells: dict[tuple[str, str, str], Cell] = {}
    server: str = ""

    def cell(self, mode: str, work: Work, side: Side) -> Cell:
        """Return a cell, made if it is new."""
        return self.cells.setdefault((mode, work.name, side.name), Cell())

    def is_ours_whole(self) -> bool:
        """Tell whether everything that is no peer could run; a peer may be missing."""
        peers = {side.name for side in self.plan.sides if side.peer}
        return all(cell.error is None or side in peers for (_, _, side), cell in self.cells.items())


Note = Callable[[str], None]


def ready(sides: Iterable[Side]) -> dict[str, str]:
    """Prepare the sides; return the errors of those that cannot run."""
    errors: dict[str, str] = {}
    for side in sides:
        try:
            side.prepare()
        except ProgramError as error:
            errors[side.name] = str(error)
    return errors


def run_once(side: Side, work: Work, count: int, server: Server) -> Line:
    """Measure one work on one side, on an empty server."""
    server.empty()
    steps = work.steps(count)
    for step in steps[:-1]:
        measured(side.command(step, server.url), server.url)
    command = side.command(steps[-1], server.url)
    if not work.answered:
        return measured(command, server.url)
    with started(side.worker(server.url), server.url) as worker:
        return measured(command, server.url, worker)


def run(plan: Plan, note: Note) -> Results:
    """Run everything; `note` is told what begins."""
    results = Results(plan)
    errors = ready(plan.sides)
    for mode in plan.modes:
        with running(plan.program, mode) as server:
            results.server = server.version()
            for work, number, side in product(plan.works, range(plan.rounds), plan.sides):
                cell = results.cell(mode, work, side)
                cell.error = cell.error or errors.get(side.name)
                if cell.error:
                    continue
                note(f"{mode}: {work.name}, round {number + 1} of {plan.rounds}: {side.name}")
                try:
                    cell.lines.append(run_once(side, work, plan.count, server))
                except ProgramError as error:
                    cell.error = str(error)
    return results
