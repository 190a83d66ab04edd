"""The progress bar of a stream of lines, on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from eventbus.model import clock

_EVERY = 0.1  # seconds between two updates of the bar


class Meter:
    """Counts lines, and draws a bar if standard error is a terminal.

    It draws nothing if results are printed to a terminal too, because they show the progress themselves.
    """

    def __init__(self, total: int | None, *, prints: bool) -> None:
        """`total` is the size of the input in bytes, if known. `prints` says whether results are printed."""
        self.began: float = clock.monotonic()
        self._size = 0
        self._drawn = 0.0
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not (prints and sys.stdout.isatty()):
            columns = (BarColumn(), TimeRemainingColumn()) if total else (SpinnerColumn(),)
            console = Console(file=sys.stderr)
            self._bar = Progress(TextColumn("{task.description}"), *columns, console=console, transient=True)
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, answered: int, failed: int, size: int) -> None:
        """Record that `size` more bytes of lines are done. `answered` and `failed` count all lines so far."""
        self._size += size
        now = clock.monotonic()
        if self._bar is None or now - self._drawn < _EVERY:
            return
        self._drawn = now
        count = answered + failed
        rate = count / max(now - self.began, 0.001)
        text = f"{count:,} lines, {rate:,.0f}/s" + (f", {failed:,} failed" if failed else "")
        self._bar.update(self._task, completed=self._size, description=text)
