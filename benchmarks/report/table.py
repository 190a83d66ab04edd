"""The results as tables of text, and those tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.own.row import Row
from benchmarks.report.goals import FIGURES, ratio, verdicts
from benchmarks.rounds import Cell, Results
from benchmarks.works import Work

_WIDTH = 170


class Sheet(msgspec.Struct):
    """A table: its title, the titles of its columns, how many of these are words, and its rows."""

    title: str
    header: list[str]
    words: int
    rows: list[list[str]]


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _shown(cell: Cell, field: str) -> str:
    values, middle = cell.values(field), cell.median(field)
    if middle is None:
        return ""
    half = (max(values) - min(values)) / 2
    return f"{_number(middle)} ± {half / middle:.0%}" if len(values) > 1 and middle else _number(middle)


def _compared(results: Results, mode: str, work: Work) -> Iterator[list[str]]:
    ours = results.cell(mode, work, results.plan.sides[0].name)
    for side in results.plan.sides:
        cell = results.cells.get((mode, work.name, side.name))
        if cell is None:
            continue
        if cell.error:
            yield [work.title, side.name, "cannot run", *[""] * (2 * len(FIGURES) + 1)]
            continue
        figures: list[str] = []
        for field in FIGURES:
            times = None if cell is ours else ratio(ours, cell, field)
            figures += [_shown(cell, field), "" if times is None else _number(times)]
        worker = [cell.median("worker_user_us"), cell.median("worker_system_us")]
        shown = " + ".join(_number(value) for value in worker if value is not None)
        yield [work.title, side.name, f"{cell.count:,}", *figures, shown]


def comparison(results: Results, mode: str, unit: str) -> Sheet:
    """Return the table of all sides in the works that count `unit`, in one mode of the server."""
    header = ["work", "side", f"{unit}s"]
    for title in (f"{unit}s/s", f"server CPU, µs/{unit}", "p50, ms", "p99, ms"):
        header += [title, "ours : it"]
    works = [work for work in results.plan.works if work.unit == unit]
    rows = [row for work in works for row in _compared(results, mode, work)]
    header.append(f"worker CPU, user + system, µs/{unit}")
    return Sheet(f"{results.server}, {mode}, {unit}s", header, 2, rows)


def own(results: Results, row: Row) -> Sheet:
    """Return the table of one of our own rows; ratios are to its first variant."""
    base = results.own_cell(row, row.variants[0])
    rows: list[list[str]] = []
    for variant in row.variants:
        cell = results.own_cell(row, variant)
        if cell.error:
            rows.append([variant, "cannot run", *[""] * (len(row.columns) - 1)])
            continue
        figures: list[str] = []
        for column in row.columns:
            times = None if cell is base else ratio(cell, base, column.field)
            more = "" if times is None else f" ({times:.2f} x)"
            figures.append(_shown(cell, column.field) + more)
        rows.append([variant, *figures])
    return Sheet(row.title, ["", *(column.title for column in row.columns)], 1, rows)


def goals(results: Results) -> Sheet:
    """Return the table of all goals: measured, met or not, and why not."""
    modes = results.plan.modes
    rows: list[list[str]] = []
    for verdict in verdicts(results):
        measured = [verdict.measured.get(mode) for mode in modes]
        shown = ["" if value is None else f"{value:.2f}" for value in measured]
        met = {True: "met", False: "not met", None: "not measured"}[verdict.is_met]
        words = [verdict.work, verdict.figure, verdict.against]
        rows.append([*words, verdict.goal, *shown, met, verdict.reason])
    header = ["work", "figure", "against", "goal", *modes, "", "reason"]
    return Sheet("Goals", header, 4, rows)


def errors(results: Results) -> list[str]:
    """Return a line for each thing that could not run, each error once."""
    where: dict[tuple[str, str], list[str]] = {}
    for (mode, work, side), cell in results.cells.items():
        if cell.error:
            where.setdefault((side, cell.error), []).append(f"{work} ({mode})")
    for (row, _), cell in results.own.items():
        if cell.error and row not in where.setdefault(("eventbus", cell.error), []):
            where["eventbus", cell.error].append(row)
    return [f"{side}: {', '.join(works)}: {error}" for (side, error), works in where.items()]


def sheets(results: Results) -> Iterator[Sheet]:
    """Yield all tables, the goals first."""
    yield goals(results)
    units = dict.fromkeys(work.unit for work in results.plan.works)
    yield from (comparison(results, mode, unit) for unit in units for mode in results.plan.modes)
    yield from (own(results, row) for row in results.plan.rows)


def show(console: Console, results: Results, facts: Mapping[str, str]) -> None:
    """Print the tables, the facts, and the errors."""
    if not console.is_terminal:
        console.width = _WIDTH
    for sheet in sheets(results):
        table = Table(title=sheet.title, title_justify="left")
        for number, title in enumerate(sheet.header):
            table.add_column(title, justify="left" if number < sheet.words else "right")
        before = ""
        for row in sheet.rows:
            if before and row[0] != before and sheet.words > 1:
                table.add_section()
            table.add_row(*row)
            before = row[0]
        console.print(table)
    for name, value in facts.items():
        console.print(f"{name}: {value}", markup=False, highlight=False)
    for line in errors(results):
        console.print(line, style="red", markup=False, highlight=False)
