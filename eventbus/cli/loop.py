"""The event loop of a command: uvloop where it is installed; and an end that waits for no thread."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["leave_stuck_threads", "leave_within", "run"]

T = TypeVar("T")

_THREADS_END_WITHIN = 0.5


class _Unwaited(ThreadPoolExecutor):
    """A pool that an ending loop does not wait for: what it still runs was given up on."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in a new event loop and return its result."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  (an extra)
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_default_executor(_Unwaited(thread_name_prefix="eventbus-default"))
    return loop


def leave_within(seconds: float, code: int) -> None:
    """End the process with `code` after so many seconds, whatever it still waits for."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def leave_stuck_threads(code: int) -> None:
    """End the process with `code` if threads of handlers do not end; else do nothing.

    A thread cannot be cancelled, and the interpreter waits for those of every pool.
    """
    deadline = time.monotonic() + _THREADS_END_WITHIN
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
