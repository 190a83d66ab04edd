"""One attempt: a run of a user's function that always ends, whatever the function does.

The rules are those of the engine: a timeout is a failed attempt, even if the function swallows its
cancellation and returns; a function that ignores its cancellation is cancelled again after `patience`, and
then given up on. One rule differs: after a cut from outside (the flow was cancelled or timed out), a value
that the function still returns counts, because its effect must be undone.

The function has a task and a context of its own. It begins at once if the caller wants that (from Python 3.12
on; else with the next round of the event loop), so an attempt that waits for nothing takes no round of the
event loop.

What must always hold: `run` returns only after the function has ended or was given up on, so that no step is
undone while it still runs; `run` never raises the function's error; a timeout counts from the function's
beginning.

What a function came to is recorded with `outlast`: a cancellation in the moment between its end and its
record would otherwise lose what it did, and then nobody undoes it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Literal, TypeVar

import anyio
import msgspec

from eventbus.lowlevel import clock, get_logger, mark_own, original

R = TypeVar("R")

PATIENCE = 1.0
"""Seconds after which a function that ignores its cancellation is cancelled again, then given up on."""

_log = get_logger("workflows")


def begin_task(work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
    """Make a task of `work` and run it up to its first wait; before Python 3.12, or with a task factory, it
    runs later.
    """
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)


async def wait_ended(tasks: Collection[asyncio.Task[Any]], patience: float | None = None) -> None:
    """Wait until tasks have ended, for `patience` seconds at most; a cancellation of this call is raised
    behind that.

    A cancel scope of anyio cancels again in each round of the event loop; only a shield keeps it from that.
    """
    end = None if patience is None else clock.monotonic() + patience
    cancelled: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        if end is not None and clock.monotonic() >= end:
            break
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(left, timeout=None if end is None else end - clock.monotonic())
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def outlast(work: Coroutine[Any, Any, R]) -> R:
    """Return what `work` returns, or raise what it raises.

    If this call is cancelled, `work` goes on, and the cancellation is raised behind its end, or after
    `PATIENCE` seconds. An error of `work` is lost then: who is cancelled could do nothing about it.
    """
    task = begin_task(work)
    if not task.done():
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _: ended.done() or ended.set_result(None))
        try:
            await ended  # a shield would cost each record of a flow more
        except asyncio.CancelledError:
            try:
                await wait_ended([task], PATIENCE)
            finally:
                let_go(task)
            raise
    return task.result()


def let_go(task: asyncio.Task[Any]) -> None:
    """End the wait for a task whose outcome is of no use any more; what it has sent goes on."""
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.exception()


class StillRuns(Exception):
    """A plain function was cancelled but still runs in its thread, so its effect is unknown."""


class Ended(msgspec.Struct, frozen=True):
    """The end of an attempt: a value, an error, or neither because it was cut from outside.

    `is_lost` tells that it was cut and given up on: its function may still run, so its effect is unknown.
    """

    value: Any = None
    error: BaseException | None = None
    is_cut: bool = False
    is_lost: bool = False


class AttemptRun:
    """One run of `call`. Await `run` only once."""

    __slots__ = ("_call", "_is_cut", "_patience", "_timeout", "_waiter", "_what", "cancellation", "ending")

    def __init__(
        self,
        call: Callable[[], Awaitable[Any]],
        *,
        what: str,
        timeout: float | None,
        patience: float = PATIENCE,
    ) -> None:
        """Name the attempt `what` in errors and logs, such as `step 'charge'`; `timeout` is in seconds."""
        self._call = call
        self._what = what
        self._timeout = timeout
        self._patience = patience
        self._is_cut = False
        self._waiter: asyncio.Future[None] | None = None
        self.ending: Literal["", "cut", "timeout"] = ""
        """Why the function was cancelled; empty while it was not. May be read in any thread."""
        self.cancellation: asyncio.CancelledError | None = None
        """How `run` was cancelled, if it took that for a cut. A scope of anyio knows its own cancellations
        only."""

    def cut(self) -> None:
        """Cancel the function from outside; if it returns a value nevertheless, that value counts."""
        self._is_cut = True
        self._wake()

    async def run(self, *, cut_on_cancel: bool = False, at_once: bool = True) -> Ended:
        """Run the function to its end. Without `at_once` it begins with the next round of the event loop,
        after others.

        Cancelling this call cancels the function and waits for its end. With `cut_on_cancel` it then counts
        as cut: this call returns, and the caller must pass the `cancellation` on.
        """
        if self._is_cut:
            return Ended(is_cut=True)
        loop = asyncio.get_running_loop()
        began = clock.monotonic()
        call = _guarded(self._call)
        task = begin_task(call) if at_once else loop.create_task(call)
        if task.done():
            return self._outcome(task)
        self._waiter = loop.create_future()
        task.add_done_callback(self._wake)
        timer = None
        if self._timeout is not None:
            left = began + self._timeout - clock.monotonic()
            timer = loop.call_later(max(0.0, left), self._wake)
        try:
            if not self._is_cut:
                await self._waiter
        except asyncio.CancelledError as error:
            if not cut_on_cancel:
                self.ending = "cut"
                with anyio.CancelScope(shield=True):  # the repeats of anyio are no second cancellation
                    await self._end(task)  # otherwise the function would run on after its attempt
                raise
            self._is_cut, self.cancellation = True, error
        finally:
            if timer is not None:
                timer.cancel()
        if not task.done():
            self.ending = "cut" if self._is_cut else "timeout"
            with anyio.CancelScope(shield=True):
                await self._end(task, stays=cut_on_cancel)
            if not self._is_cut:
                return Ended(error=self._late(task))
        return self._outcome(task)

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _end(self, task: asyncio.Task[Ended], *, stays: bool = False) -> None:
        """Cancel the function, once more after `patience` seconds, then give up.

        `stays` waits for that although this call is cancelled, too.
        """
        for _ in range(2):
            task.cancel()
            end = clock.monotonic() + self._patience
            while not task.done() and (left := end - clock.monotonic()) > 0:
                try:
                    await asyncio.wait({task}, timeout=left)
                except asyncio.CancelledError as error:
                    if not stays:
                        raise
                    self._is_cut, self.cancellation = True, error
            if task.done():
                return
        _log.error("function ignores its cancellation, given up on", what=self._what)

    def _outcome(self, task: asyncio.Task[Ended]) -> Ended:
        ended = None if not task.done() or task.cancelled() else task.result()
        if ended is None:
            ended = Ended(error=asyncio.CancelledError("it cancelled itself"))
        if self._is_cut and ended.error is not None:
            is_lost = not task.done() or isinstance(ended.error, StillRuns)
            return Ended(is_cut=True, is_lost=is_lost)
        return ended

    def _late(self, task: asyncio.Task[Ended]) -> TimeoutError:
        late = TimeoutError(f"{self._what} timed out: it ran longer than its timeout of {self._timeout:g} s")
        if task.done() and not task.cancelled():
            late.__cause__ = task.result().error  # its traceback shows where the function was
        mark_own(late)  # a declared TimeoutError of the workflow does not apply to it
        return late


async def _guarded(call: Callable[[], Awaitable[Any]]) -> Ended:
    """Run `call` and return its outcome, so that no error of a user's function ends the event loop."""
    try:
        return Ended(value=await call())
    except BaseException as error:  # noqa: BLE001  (whatever a function raises)
        return Ended(error=original(error))
