"""Counts what a piece of work costs. Seconds tell what else the machine does; these counts do not."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import eventbus
import workflows

__all__ = ["OURS", "Count", "count_commands", "count_lines", "count_sent"]

Admin = Callable[..., Any]

OURS = tuple(each.__path__[0] for each in (eventbus, workflows))
"""Where the packages lie."""


class Count:
    """What was counted."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def count_lines(of: tuple[str, ...] = ("",)) -> Generator[Count]:
    """Count the lines of Python that this thread runs meanwhile, also those of coroutines that it goes on
    with; `of` names the folders of which they count.
    """
    lines, before = Count(), sys.gettrace()

    def note(frame: FrameType, event: str, arg: Any) -> Any:
        lines.count += event == "line"
        return note if event != "call" or frame.f_code.co_filename.startswith(of) else None

    gc.collect()  # finalizers of what other tests left are no part of it
    sys.settrace(note)
    try:
        yield lines
    finally:
        sys.settrace(before)


@contextmanager
def count_commands(admin: Admin) -> Generator[Count]:
    """Count the commands that the server runs meanwhile, also those that scripts call."""
    count, before = Count(), _commands(admin)
    yield count
    count.count = _commands(admin) - before


@contextmanager
def count_sent(admin: Admin) -> Generator[Count]:
    """Count the bytes that the server sends meanwhile."""
    count, before = Count(), _sent(admin)
    yield count
    count.count = _sent(admin) - before


def _commands(admin: Admin) -> int:
    return sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in admin("INFO", "commandstats").splitlines()
        if line.startswith("cmdstat_") and not line.startswith("cmdstat_info:")
    )


def _sent(admin: Admin) -> int:
    (found,) = (
        line.partition(":")[2]
        for line in admin("INFO", "stats").splitlines()
        if line.startswith("total_net_output_bytes:")
    )
    return int(found)
