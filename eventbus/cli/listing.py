"""Listings: what a command found, as a table for people or as JSON for programs.

A command says once which columns its rows have, and what is told where there are none. JSON has the rows as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar, cast

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from eventbus.cli.output import tell_asked, write_json, write_lines
from eventbus.cli.screen import open_console
from eventbus.cli.texts import printable

T = TypeVar("T")

Row: TypeAlias = "tuple[str | int | Text, ...]"
"""The cells of a line: texts, whose white space is shown as single spaces, counts, and texts as they are."""

_COUNTS = ">"


class Listing(Generic[T]):
    """The table of a command. It has a line for each of the things that were found."""

    def __init__(self, row: Callable[[T], Row], heads: str, *, none: str, optional: str = "") -> None:
        """`row` returns the cells below the `heads`, which have commas between. Below one that begins with
        `>` are counts, on the right.

        `none` is told where there are no rows. The column `optional` is left out where all of it is empty.
        """
        self._row = row
        self._heads = heads.split(", ")
        self._none = none
        self._optional = optional

    def table(self, found: Sequence[T]) -> RenderableType:
        """Return the table, or what is told where there are no rows."""
        if not found:
            return Text(self._none)
        rows = [self._row(each) for each in found]
        table, places = Table(box=None, pad_edge=False), list[int]()
        for place, head in enumerate(self._heads):
            if head != self._optional or any(row[place] for row in rows):
                justify = "right" if head.startswith(_COUNTS) else "left"
                table.add_column(head.removeprefix(_COUNTS), no_wrap=True, justify=justify)
                places.append(place)
        for row in rows:
            table.add_row(*(_cell(row[place]) for place in places))
        return table

    def print(self, found: Sequence[T]) -> None:
        """Print the table; where there are no rows also which server was asked."""
        open_console().print(self.table(found))
        if not found:
            tell_asked()


def show_found(found: T, print_: Callable[[T], None], *, as_json: bool) -> None:
    """Write what was found: for people by `print_`, or as JSON, of a list each part on a line of its own."""
    if not as_json:
        print_(found)
    elif isinstance(found, list):
        write_lines(cast("list[object]", found))
    else:
        write_json(found)


def _cell(given: str | int | Text) -> Text:
    if isinstance(given, Text):
        return given
    return Text(printable(given) if isinstance(given, str) else str(given))
