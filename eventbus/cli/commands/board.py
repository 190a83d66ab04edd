"""The demo's display of outcomes: a live table on a terminal, otherwise plain lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from eventbus.model import clock


class _Row(msgspec.Struct):
    title: str
    outcome: str | None = None
    is_error: bool = False
    after: float = 0.0
    detail: str = ""


class Board:
    """Rows with a title, an outcome and the seconds until it came; drawn when they change."""

    def __init__(self, heading: str, titles: list[str]) -> None:
        self.has_failed: bool = False
        self._began = clock.monotonic()
        self._heading = heading
        self._rows = {title: _Row(title) for title in titles}
        self._live: Live | None = None
        if sys.stdout.isatty():
            self._live = Live(console=Console(), get_renderable=self._draw, refresh_per_second=12)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        else:
            self._print(self._heading)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, title: str, outcome: str, *, detail: str = "", is_error: bool = False) -> None:
        """Set a row's outcome. `detail` may have several lines; `is_error` marks an unexpected outcome."""
        row = self._rows[title]
        row.outcome, row.detail, row.is_error = outcome, detail, is_error
        row.after = clock.monotonic() - self._began
        self.has_failed = self.has_failed or is_error
        if self._live is None:
            self._print(f"{row.after:5.2f} s  {title}: {outcome}")
            for line in detail.splitlines():
                self._print(f"         {line}")

    def close(self, text: str) -> None:
        """Print a last line. On a terminal, print the details before it, which are too long for the table."""
        text = f"{text} {clock.monotonic() - self._began:.1f} s in all."
        if self._live is None:
            self._print(text)
            return
        for row in self._rows.values():
            if row.detail:
                self._live.console.print(Text(row.detail, style="dim"))
        self._live.console.print(Text(text))

    def _print(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _draw(self) -> RenderableType:
        table = Table(title=self._heading, title_justify="left", expand=False)
        table.add_column("what")
        table.add_column("outcome", overflow="fold")
        table.add_column("after", justify="right")
        for row in self._rows.values():
            if row.outcome is None:
                table.add_row(row.title, Spinner("dots", style="dim"), "")
            else:
                style = "bold red" if row.is_error else "green"
                table.add_row(row.title, Text(row.outcome, style=style), f"{row.after:.2f} s")
        return table
