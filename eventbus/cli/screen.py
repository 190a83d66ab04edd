"""The console of commands: tables that a screen is too narrow for are not cut, because people copy ids and read counts.

A column of errors or of lists may be cut. It gets what the others leave, at least some words. If that is not enough, lines are
longer than the screen, which breaks them.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table

__all__ = ["Screen"]

_MAY_BE_CUT = frozenset({"error", "note", "queues"})
"""The heads of columns whose rest nobody has to copy."""
_LEAST = 24
"""Characters that a column keeps which may be cut."""
_ANY = 100_000


class Screen(Console):
    """Prints tables as wide as they are."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, as `Console.print` does; lines of tables may be longer than the screen is wide."""
        needed = max((self._fit(table) for table in _tables_in(objects)), default=0)
        width = self.width
        self.width = max(width, needed)
        try:
            super().print(*objects, **options)
        finally:
            self.width = width

    def _fit(self, table: Table) -> int:
        """Return the width that a table needs, after columns that may be cut were made smaller if it is too much."""
        needed = self._measure(table)
        columns = [column for column in table.columns if column.header in _MAY_BE_CUT]
        if needed <= self.width or not columns:
            return needed
        for column in columns:
            column.max_width = _LEAST
        left = self.width - self._measure(table)
        for column in columns:
            column.max_width = _LEAST + max(left, 0) // len(columns)
        return self._measure(table)

    def _measure(self, table: Table) -> int:
        return Measurement.get(self, self.options.update(max_width=_ANY), table).maximum


def _tables_in(objects: tuple[Any, ...]) -> list[Table]:
    found: list[Table] = []
    for each in objects:
        if isinstance(each, Group):
            found += _tables_in(tuple(each.renderables))
        elif isinstance(each, Table):
            found.append(each)
    return found
