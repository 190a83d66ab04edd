"""Writes the results into `docs/benchmarks.md`, between its markers; the rest of it stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.report.table import Sheet, errors, sheets
from benchmarks.rounds import Results

BEGIN = "<!-- benchmarks: begin, written by python -m benchmarks -->"
END = "<!-- benchmarks: end -->"

_NEW = f"# Benchmarks\n\n{BEGIN}\n{END}\n"


def _markdown(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(sheet: Sheet) -> Iterator[str]:
    yield f"### {sheet.title}"
    yield ""
    yield _markdown(sheet.header)
    yield _markdown(["---"] * sheet.words + ["---:"] * (len(sheet.header) - sheet.words))
    yield from map(_markdown, sheet.rows)
    yield ""


def section(results: Results, facts: dict[str, str], command: str) -> str:
    """Return the text between the markers."""
    failed = [f"- {line}" for line in errors(results)]
    parts = [
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        f"- command: `{command}`",
        "",
        *(line for sheet in sheets(results) for line in _table(sheet)),
        *(["### What could not run", "", *failed, ""] if failed else []),
    ]
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    """Replace what stands between the markers of the page; a page without them gets them."""
    page = path.read_text() if path.exists() else _NEW
    if BEGIN not in page or END not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
