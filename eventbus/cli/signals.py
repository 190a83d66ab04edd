"""Counts SIGINT and SIGTERM: the first signal asks the command to end, the second forces it.

What must always hold:
- the previous handlers handle the signals again afterwards. In between, a signal is never left to the system,
  not even for a moment, because the system would end the process;
- signals are handled while the event loop is blocked too; the last resort for that case is `limits`;
- a forked process has the handlers of a fresh process, because its signals do not concern this command.

That is why Python's own signal handlers are used instead of the event loop's. The loop's handlers leave the
signal to the system when they are removed, also when the loop ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HARMLESS = signal.SIGURG
"""A signal that the system ignores by default. A loop that handles any signal wakes up for all signals."""

_entered: list[Interrupts] = []


class Interrupts:
    """Handles both signals inside its block, for the task that makes it.

    Each signal calls `act` in the event loop. At first `act` cancels the task; the command replaces it when
    it has something better to end.
    """

    def __init__(self, *, limits: Sequence[float] = ()) -> None:
        """`limits` are the seconds that the process has after the first and after the second signal.

        After that it is ended by force, whatever it does, with exit code 1 and the stack of each thread on
        standard error. Later signals give it no more time.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (only tasks make one)
        self.cancel: Callable[[], object] = task.cancel
        self.act: Callable[[], object] = task.cancel
        self.count: int = 0
        self.code: int = 0
        """The exit code: 128 + the number of the last signal; 0 before the first one."""
        self._limits = limits
        self._before: list[Any] = []
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    def __enter__(self) -> Self:
        self._loop.add_signal_handler(_HARMLESS, _ignore)
        self._before = [signal.signal(number, self._on_signal) for number in _SIGNALS]
        _entered.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.remove(self)
        self.act = _ignore
        for number, before in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, before)
        self._loop.remove_signal_handler(_HARMLESS)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Count a signal. It may interrupt any step, so this takes no lock and lets the event loop act."""
        self.count += 1
        count = self.count  # the next signal may interrupt any of these lines
        self.code = 128 + number
        if count <= len(self._limits) and sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(self._limits[count - 1], exit=True, file=sys.__stderr__)
        # In a context of its own: that of the job whose code is interrupted would put the job's id into the
        # log line.
        self._loop.call_soon_threadsafe(self._act, context=self._context)

    def _act(self) -> None:
        self.act()


def _ignore() -> None: ...


def _reset_in_child() -> None:
    if _entered:
        signal.set_wakeup_fd(-1)  # otherwise a signal of this process would be written to the parent's loop
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_reset_in_child)
