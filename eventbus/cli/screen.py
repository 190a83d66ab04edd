"""The console of commands: tables that a screen is too narrow for are not cut, because people copy ids and
read counts.

A column of errors or of lists may be cut. It gets what the others leave, at least some words. If that is not
enough, lines are longer than the screen, which breaks them.

What must always hold: no text in what is printed has a character that moves the cursor, changes colours or
turns the direction of
what follows, and no cell begins a line; it is cleaned here, wherever it comes from (`texts.visible`).

Plain tables, without a frame and with a line for each row, are laid out here: as rich lays them out, in a
tenth of the time, because hundreds of queues are a table of thousands of cells.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from eventbus.cli.texts import visible

_MAY_BE_CUT = frozenset({"error", "note", "queues"})
"""The heads of columns whose rest nobody has to copy."""
_LEAST = 24
"""Characters that a column keeps which may be cut."""
_INDENT = 4
"""Cells in front of what stands a level deeper in a tree."""
_GAP = 2
"""Spaces between two columns."""
_WIDE = 400
"""Columns of output that does not go to a screen."""


class _Laid(NamedTuple):
    """A column as it is printed: its cells, each with its width, and the width of the column."""

    column: Column
    cells: list[tuple[Text, int]]
    width: int


class Screen(Console):
    """Prints tables as wide as they are."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, as `Console.print` does; lines of tables may be longer than the screen is wide."""
        laid = [self._lay_out(_clean(each)) for each in objects]
        width = self.width
        self.width = max([width, *(_width_of(each) for each in laid)])
        try:
            super().print(*laid, **options)
        finally:
            self.width = width

    def _lay_out(self, printed: Any) -> Any:
        """Return what takes the place of a plain table, or of those in a group: lines of text."""
        if isinstance(printed, Group):
            return Group(*map(self._lay_out, printed.renderables))
        if not isinstance(printed, Table) or not _is_plain(printed):
            return printed
        found = [_lay_column(column, has_head=printed.show_header) for column in printed.columns]
        columns = [each._replace(width=width) for each, width in zip(found, self._fit(found), strict=True)]
        text = Text(no_wrap=True, overflow="ignore")
        if printed.show_header:
            names = [str(each.column.header) for each in columns]
            heads = [(Text(name, "table.header"), cell_len(name)) for name in names]
            _add_line(text, columns, heads)
        for row in zip(*(each.cells for each in columns), strict=True):
            _add_line(text, columns, row)
        return text

    def _fit(self, columns: list[_Laid]) -> list[int]:
        """Return the widths of columns, after those that may be cut were made smaller if all is too much."""
        widths = [each.width for each in columns]
        left = self.width - sum(widths) - _GAP * (len(widths) - 1)
        cut = [place for place, each in enumerate(columns) if each.column.header in _MAY_BE_CUT]
        if left >= 0 or not cut:
            return widths
        natural = [widths[place] for place in cut]
        for place in cut:
            widths[place] = min(widths[place], _LEAST)
        left = max(0, self.width - sum(widths) - _GAP * (len(widths) - 1))
        for place, whole in zip(cut, natural, strict=True):
            widths[place] = min(whole, _LEAST + left // len(cut))
        return widths


def open_console() -> Console:
    """Return standard output: on a screen with colours and its width, otherwise with plain and wide lines."""
    is_screen = sys.stdout.isatty()
    return Screen(width=None if is_screen else _WIDE, highlight=False, markup=False, emoji=False)


def _clean(printed: Any) -> Any:
    """Return what is printed without characters that do not print.

    Texts may have several lines, cells may not.
    """
    if isinstance(printed, Group):
        return Group(*map(_clean, printed.renderables))
    if isinstance(printed, (str, Text)):
        return _clean_text(printed, keeps_lines=True)
    if isinstance(printed, Table):
        for column in printed.columns:
            cells = [
                _clean_text(cell, keeps_lines=False) if isinstance(cell, (str, Text)) else cell
                for cell in column.cells
            ]
            # rich has no other way
            column._cells[:] = cells  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if isinstance(printed, Tree):
        if isinstance(printed.label, (str, Text)):
            printed.label = _clean_text(printed.label, keeps_lines=False)
        printed.children[:] = [_clean(inner) for inner in printed.children]
    return printed


def _clean_text(text: str | Text, *, keeps_lines: bool) -> Text:
    whole = Text(text) if isinstance(text, str) else text
    if whole.plain.isprintable():
        return whole
    clean = whole.copy()
    lines = whole.plain.split("\n") if keeps_lines else [whole.plain]
    clean.plain = "\n".join(map(visible, lines))
    return clean


def _is_plain(table: Table) -> bool:
    """Whether each row is a line, and nothing stands around it."""
    has_frame = table.box is not None or table.pad_edge or table.show_footer or table.title or table.caption
    return not has_frame and all(each.no_wrap for each in table.columns) and table.row_count > 0


def _lay_column(column: Column, *, has_head: bool) -> _Laid:
    texts = [each if isinstance(each, Text) else Text(str(each)) for each in column.cells]
    cells = [(each, cell_len(each.plain)) for each in texts]
    head = cell_len(str(column.header)) if has_head else 0
    return _Laid(column, cells, max([head, *(width for _, width in cells)]))


def _add_line(text: Text, columns: list[_Laid], cells: Iterable[tuple[Text, int]]) -> None:
    """Add a row as a line, with spaces up to the width of each column."""
    if text:
        text.append("\n")
    for place, (each, (cell, width)) in enumerate(zip(columns, cells, strict=True)):
        gap = " " * (_GAP * (place > 0))
        if width > each.width:
            cell = cell.copy()  # noqa: PLW2901
            cell.truncate(each.width, overflow="ellipsis")
            width = cell_len(cell.plain)  # noqa: PLW2901
        pad = " " * (each.width - width)
        is_right = each.column.justify == "right"
        text.append(gap + pad if is_right else gap)
        text.append_text(cell)
        text.append("" if is_right else pad)


def _width_of(printed: Any) -> int:
    if isinstance(printed, Group):
        return max(map(_width_of, printed.renderables), default=0)
    if isinstance(printed, Text) and printed.no_wrap:
        return max((cell_len(line) for line in printed.plain.splitlines()), default=0)
    if isinstance(printed, Tree):  # rich cuts its lines, also where they may be longer than the screen
        own = cell_len(printed.label.plain) if isinstance(printed.label, Text) else 0
        return max(own, *(_INDENT + _width_of(inner) for inner in printed.children), 0)
    return 0
