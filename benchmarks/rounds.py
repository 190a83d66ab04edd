"""Interleaved rounds: each work on each side in turn, the server emptied in between; then our own rows.

Absolute figures drift on a shared machine; a ratio of medians of neighbours in time does so
much less. A side that fails once in a work is left out of its further rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from statistics import median

import msgspec

from benchmarks.app import SERVES_VARIABLE
from benchmarks.measure import Line
from benchmarks.own.lab import Lab
from benchmarks.own.row import Row
from benchmarks.processes.draining import drain
from benchmarks.processes.programs import ProgramError, measured, started
from benchmarks.processes.server import Server, running
from benchmarks.sides import Side
from benchmarks.works import Work


class Plan(msgspec.Struct):
    """What a run measures, and how much of it; `program` is the server's."""

    sides: list[Side]
    works: list[Work]
    rows: list[Row]
    modes: list[str]
    count: int
    rounds: int
    program: str


class Cell(msgspec.Struct):
    """The figures of one side in one work, or of one variant of a row: name → one for each round.

    Or the error that ended it.
    """

    figures: dict[str, list[float]] = {}
    count: int = 0
    error: str | None = None

    def add(self, line: Line) -> None:
        """Add the figures of a round."""
        self.count = line.count
        self.add_all({name: getattr(line, name) for name in FIELDS if getattr(line, name) is not None})

    def add_all(self, found: dict[str, float]) -> None:
        """Add the figures of a round, by their names."""
        for name, value in found.items():
            self.figures.setdefault(name, []).append(value)

    def values(self, field: str) -> list[float]:
        """Return a figure of each round; none if it failed."""
        return [] if self.error else self.figures.get(field, [])

    def median(self, field: str) -> float | None:
        """Return the median of a figure over the rounds; None if it was not measured."""
        values = self.values(field)
        return median(values) if values else None


FIELDS = (
    "per_second",
    "server_cpu_us",
    "p50_ms",
    "p99_ms",
    "worker_user_us",
    "worker_system_us",
    "loop_user_us",
)
"""The figures of a line."""


class Results(msgspec.Struct):
    """All that was measured: (mode, work, side) → cell, (row, variant) → cell, and the server it ran on."""

    plan: Plan
    cells: dict[tuple[str, str, str], Cell] = {}
    own: dict[tuple[str, str], Cell] = {}
    server: str = ""

    def cell(self, mode: str, work: Work, side: str) -> Cell:
        """Return a cell, made if it is new."""
        return self.cells.setdefault((mode, work.name, side), Cell())

    def own_cell(self, row: Row, variant: str) -> Cell:
        """Return a cell of one of our own rows, made if it is new."""
        return self.own.setdefault((row.name, variant), Cell())

    def is_ours_whole(self) -> bool:
        """Tell whether everything that is no peer could run; a peer may be missing."""
        peers = {side.name for side in self.plan.sides if side.peer}
        compared = all(cell.error is None or side in peers for (_, _, side), cell in self.cells.items())
        return compared and all(cell.error is None for cell in self.own.values())


Note = Callable[[str], None]


def ready(sides: Iterable[Side], note: Note) -> dict[str, str]:
    """Prepare the sides; return the errors of those that cannot run."""
    errors: dict[str, str] = {}
    for side in sides:
        note(f"{side.name}: installing what is missing")
        try:
            side.prepare()
        except (ProgramError, OSError) as error:
            errors[side.name] = str(error)
    return errors


def run_once(side: Side, work: Work, count: int, server: Server) -> Line:
    """Measure one work on one side, on an empty server."""
    server.empty()
    steps = work.steps(count * side.share)
    for step in steps[:-1]:
        measured(side.command(step, server.url), server.url)
    if work.step == "drain" and side.drains_by_report:
        return drain(side.worker(server.url), server.url, steps[-1].count)
    command = side.command(steps[-1], server.url)
    if not work.answered:
        return measured(command, server.url)
    more = {SERVES_VARIABLE: steps[-1].serves} if steps[-1].serves else None
    with started(side.worker(server.url), server.url, more) as worker:
        return measured(command, server.url, worker)


def compare(results: Results, mode: str, server: Server, errors: dict[str, str], note: Note) -> None:
    """Run all works on all sides, in one mode of the server."""
    plan = results.plan
    for work, number, side in product(plan.works, range(plan.rounds), plan.sides):
        if number >= side.most_rounds or not side.offers(work.step):
            continue
        cell = results.cell(mode, work, side.name)
        cell.error = cell.error or errors.get(side.name)
        if cell.error:
            continue
        note(f"{mode}: {work.name}, round {number + 1} of {plan.rounds}: {side.name}")
        try:
            cell.add(run_once(side, work, plan.count, server))
        except ProgramError as error:
            cell.error = str(error)


def run_own(results: Results, server: Server, note: Note) -> None:
    """Run our own rows, all variants of a row in each round."""
    plan, lab = results.plan, Lab(server, results.plan.count)
    for row, number in product(plan.rows, range(plan.rounds)):
        if number >= row.most_rounds or results.own_cell(row, row.variants[0]).error:
            continue
        note(f"{row.name}, round {number + 1} of {min(plan.rounds, row.most_rounds)}")
        try:
            for variant, found in row.measure(lab):
                results.own_cell(row, variant).add_all(found)
        except (ProgramError, TimeoutError) as error:
            for variant in row.variants:
                results.own_cell(row, variant).error = str(error)


def run(plan: Plan, note: Note) -> Results:
    """Run everything; `note` is told what begins."""
    results = Results(plan)
    errors = ready(plan.sides, note)
    for mode in plan.modes:
        with running(plan.program, mode) as server:
            results.server = server.version()
            compare(results, mode, server, errors, note)
            if mode == plan.modes[0]:
                run_own(results, server, note)
    return results
