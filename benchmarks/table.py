"""The results as rows of text, and those rows on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table

from benchmarks.rounds import Cell, Results
from benchmarks.works import Figure, Work

_WIDTH = 150


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _shown(cell: Cell, figure: Figure) -> str:
    values, middle = cell.values(figure.field), cell.median(figure.field)
    if middle is None:
        return "cannot run" if cell.error else "-"
    half = (max(values) - min(values)) / 2
    return f"{_number(middle)} ± {half / middle:.0%}" if len(values) > 1 and middle else _number(middle)


def _ratio(one: Cell, other: Cell, figure: Figure) -> str:
    above, below = one.median(figure.field), other.median(figure.field)
    return f"{above / below:.2f}" if above is not None and below else "-"


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    return f"{'≥' if figure.more_is_better else '≤'} {figure.goal:g}"


def header(results: Results) -> list[str]:
    """Return the titles of the columns; ratios are of the first side to each other one."""
    first, *others = [side.name for side in results.plan.sides]
    return [
        "work",
        "figure",
        first,
        *others,
        *(f"{first} : {other}" for other in others),
        "goal against BullMQ",
    ]


def _row(results: Results, mode: str, work: Work, figure: Figure) -> list[str]:
    cells = [results.cell(mode, work, side) for side in results.plan.sides]
    ratios = [_ratio(cells[0], other, figure) for other in cells[1:]]
    return [work.title, figure.unit, *(_shown(cell, figure) for cell in cells), *ratios, _goal(figure)]


def groups(results: Results, mode: str) -> Iterator[list[list[str]]]:
    """Yield for each work its rows, one for each figure."""
    for work in results.plan.works:
        yield [_row(results, mode, work, figure) for figure in work.figures]


def errors(results: Results) -> list[str]:
    """Return a line for each thing that could not run, each error once."""
    where: dict[tuple[str, str], list[str]] = {}
    for (mode, work, side), cell in results.cells.items():
        if cell.error:
            where.setdefault((side, cell.error), []).append(f"{work} ({mode})")
    return [f"{side}: {', '.join(works)}: {error}" for (side, error), works in where.items()]


def show(console: Console, results: Results, facts: Mapping[str, str]) -> None:
    """Print a table for each mode of the server, the facts, and the errors."""
    if not console.is_terminal:
        console.width = _WIDTH
    for mode in results.plan.modes:
        table = Table(title=f"{results.server}, {mode}: medians", title_justify="left")
        for number, title in enumerate(header(results)):
            table.add_column(title, justify="right" if number > 1 else "left")
        for group in groups(results, mode):
            for row in group:
                table.add_row(*row, end_section=row is group[-1])
        console.print(table)
    for name, value in facts.items():
        console.print(f"{name}: {value}", markup=False, highlight=False)
    for line in errors(results):
        console.print(line, style="red", markup=False, highlight=False)
