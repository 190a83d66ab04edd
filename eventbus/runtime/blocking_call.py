"""A blocking call from a thread: a coroutine runs in an event loop of another thread, and the caller waits
for it.

What must always hold: no call waits for a loop that no longer runs, and a wait ends in time while something
blocks the loop.

Why not anyio's `from_thread.run` and blocking portal: they wait forever for a loop that was closed before it
got the call, and beyond a timeout for one that is blocked. The end of a portal waits for name lookups.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from eventbus.errors import ProviderStopped, UsageError
from eventbus.model import clock

T = TypeVar("T")

_LOOK = 0.5
"""Seconds between two checks for a closed loop: a loop that was closed before it got a call never answers."""


class ThreadWait:
    """Is told, in the loop, while a thread waits for it. The test kit's own one lets time pass meanwhile."""

    def begin(self) -> None:
        """Hear that the coroutine begins."""

    def end(self) -> None:
        """Hear that the coroutine has ended, before the thread goes on."""


def make_wait(loop: asyncio.AbstractEventLoop, end: float | None) -> ThreadWait:  # noqa: ARG001
    """Make what is told of a wait of this thread, which ends at this time of the monotonic clock at most."""
    return ThreadWait()


_loops_of_parents: set[asyncio.AbstractEventLoop] = set()
"""Loops of the processes from which this one was forked. Nothing runs them in this process."""


def forget_parents_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse calls into a loop of the process from which this one was forked: nothing runs it here."""
    _loops_of_parents.add(loop)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def run_at_once(work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:  # noqa: ARG001
    """Run a coroutine that waits for nothing to its end, and return what it returns. It takes no time."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise AssertionError("this call must not wait for an event loop, because none runs here")


def run_blocking(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], timeout: float | None = None
) -> T:
    """Run a coroutine in the loop's thread and wait for it. Cancels it after `timeout` seconds.

    Raises what the coroutine raises, TimeoutError, ProviderStopped if the loop has ended, UsageError in a
    forked process.
    """
    if loop in _loops_of_parents:
        work.close()  # otherwise Python warns that it was never awaited
        raise UsageError(
            "this emission was made in the process from which this one was forked, and its outcome comes "
            "there; emit after the fork, or wait for its job with provider.sync.result(job_id)"
        )
    call = _Call(loop, work, timeout)
    try:
        loop.call_soon_threadsafe(call.start)
    except RuntimeError as error:  # the loop was closed without a stop
        work.close()
        raise ProviderStopped("the provider's event loop has ended") from error
    try:
        return call.wait()
    except BaseException:  # timed out or interrupted: nobody waits for the outcome any more
        if not call.future.done() and not loop.is_closed():
            loop.call_soon_threadsafe(call.cancel)
        raise


class _Call(Generic[T]):
    """One coroutine that runs in the loop's thread, in a copy of the caller's context."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], timeout: float | None = None
    ) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._until = None if timeout is None else clock.monotonic() + timeout
        self._told = make_wait(loop, self._until)
        self._loop = loop
        self._work = work
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None

    def wait(self) -> T:
        """Wait for the outcome, at most the timeout. Raises TimeoutError, ProviderStopped."""
        end = self._until
        while True:
            left = _LOOK if end is None else min(_LOOK, max(0.0, end - clock.monotonic()))
            try:
                return self.future.result(left)
            except TimeoutError:
                # Read before `done`: a loop that ends sets the outcomes of its calls before it is closed.
                is_closed = self._loop.is_closed()
                if self.future.done():  # the coroutine itself raised TimeoutError, or it ended just now
                    return self.future.result()
                if is_closed:
                    if self._task is None:
                        self._work.close()
                    raise ProviderStopped("the provider's event loop has ended") from None
                if end is not None and clock.monotonic() >= end:
                    raise

    def start(self) -> None:
        self._told.begin()
        self._task = self._loop.create_task(self._work, context=self._context)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        self._told.end()
        if task.cancelled():
            self.future.set_exception(ProviderStopped("the provider's event loop ended"))
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())
