"""The event loop of a command (uvloop if it is installed), and an exit that does not wait for long.

Neither a task that swallows its cancellation nor a thread keeps the process alive. When `main` has ended, the
command has given up on all work that still runs.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

from eventbus.model import clock

T = TypeVar("T")

_TASKS_END_WITHIN = 1.0
"""Seconds that cancelled tasks, and then async generators, have to end."""
_THREADS_END_WITHIN = 0.5
"""Seconds that all threads together have to end."""


class _Unwaited(ThreadPoolExecutor):
    """A thread pool that a closing loop does not wait for."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in a new event loop and return its result."""
    if not gc.isenabled():
        gc.freeze()  # what was imported stays
        gc.enable()
    runner = asyncio.Runner(loop_factory=_new_loop)
    try:
        return runner.run(main)
    finally:
        # Closing the runner waits for all tasks without limit, so it is closed only if they have ended.
        if runner.get_loop().run_until_complete(_end_tasks()):
            runner.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  (an extra)
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_default_executor(_Unwaited(thread_name_prefix="eventbus-default"))
    return loop


async def _end_tasks() -> bool:
    """Cancel the tasks and the async generators that are left. Return False if some did not end in time."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks and (await asyncio.wait(tasks, timeout=_TASKS_END_WITHIN))[1]:
        return False
    generators = asyncio.create_task(asyncio.get_running_loop().shutdown_asyncgens())
    return not (await asyncio.wait([generators], timeout=_TASKS_END_WITHIN))[1]


def leave_within(seconds: float, code: int) -> None:
    """End the process with `code` after `seconds`, whatever it still waits for."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def leave(code: int) -> NoReturn:
    """End the process with `code`, without the interpreter's own exit. Waits 0.5 s at most for threads.

    The interpreter's exit would wait for the threads of every pool without limit, and a thread cannot be
    cancelled.
    """
    deadline = clock.monotonic() + _THREADS_END_WITHIN
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - clock.monotonic()))
    atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads the output any more
    os._exit(code)
