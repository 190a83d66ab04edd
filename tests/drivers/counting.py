"""Counts what a piece of work costs. Seconds tell what else the machine does; these counts are the same on each."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Count", "count_commands", "count_lines"]


class Count:
    """What was counted."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def count_lines() -> Iterator[Count]:
    """Count the lines that this thread runs meanwhile, also those of coroutines that it goes on with."""
    lines, before = Count(), sys.gettrace()

    def note(frame: FrameType, event: str, arg: Any) -> Any:
        lines.count += event == "line"
        return note

    gc.collect()  # finalizers of what other tests left are no part of it
    sys.settrace(note)
    try:
        yield lines
    finally:
        sys.settrace(before)


@contextmanager
def count_commands(admin: Callable[..., Any]) -> Iterator[Count]:
    """Count the commands that the server runs meanwhile, also those that scripts call."""
    count, before = Count(), _commands(admin)
    yield count
    count.count = _commands(admin) - before


def _commands(admin: Callable[..., Any]) -> int:
    return sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in admin("INFO", "commandstats").splitlines()
        if line.startswith("cmdstat_") and not line.startswith("cmdstat_info:")
    )
