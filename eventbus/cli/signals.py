"""SIGINT and SIGTERM, counted: the first asks, the second insists."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["Interrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Takes both signals inside its block, for the task that makes it.

    `act` is called at each; it is to be replaced as what must be ended changes, and cancels
    the task until then.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (made by a task only)
        self.cancel: Callable[[], object] = task.cancel
        self.act: Callable[[], object] = task.cancel
        self.count = 0
        self.code = 0
        """128 + the number of the last signal, 0 while there was none."""

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._note, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def _note(self, number: signal.Signals) -> None:
        self.count += 1
        self.code = 128 + number
        self.act()
