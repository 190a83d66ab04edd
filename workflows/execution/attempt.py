"""One attempt: a run of a user's function that always ends, whatever the function does.

The rules are those of the engine: a timeout is a failed attempt, even if the function swallows its
cancellation and returns; a function that ignores its cancellation is cancelled again after `patience`, and
then given up on. One rule differs: after a cut from outside (the flow was cancelled or timed out), a value
that the function still returns counts, because its effect must be undone.

What must always hold: `run` returns only after the function has ended or was given up on, so that no step is
undone while it still runs; `run` never raises the function's error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from eventbus.lowlevel import get_logger, mark_own

__all__ = ["PATIENCE", "Attempt", "Ended", "StillRuns"]

PATIENCE = 1.0
"""Seconds after which a function that ignores its cancellation is cancelled again, then given up on."""

_log = get_logger("workflows")


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


class Attempt:
    """One run of `call`. Await `run` only once."""

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
        self._cut = asyncio.Event()

    def cut(self) -> None:
        """Cancel the function from outside; if it returns a value nevertheless, that value counts."""
        self._cut.set()

    async def run(self) -> Ended:
        """Run the function to its end. Cancelling this call cancels the function and waits for its end."""
        task = asyncio.create_task(_guarded(self._call))
        cut = asyncio.create_task(self._cut.wait())
        try:
            await asyncio.wait({task, cut}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await self._end(task)
                if not self._cut.is_set():
                    return Ended(error=self._late(task))
            return self._outcome(task)
        except asyncio.CancelledError:
            await self._end(task)  # otherwise the function would run on after its attempt
            raise
        finally:
            cut.cancel()

    async def _end(self, task: asyncio.Task[Ended]) -> None:
        """Cancel the function, once more after `patience` seconds, then give up."""
        for _ in range(2):
            task.cancel()
            await asyncio.wait({task}, timeout=self._patience)
            if task.done():
                return
        _log.error("function ignores its cancellation, given up on", what=self._what)

    def _outcome(self, task: asyncio.Task[Ended]) -> Ended:
        ended = None if not task.done() or task.cancelled() else task.result()
        if ended is None:
            ended = Ended(error=asyncio.CancelledError("it cancelled itself"))
        if self._cut.is_set() and ended.error is not None:
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (whatever a function raises)
        return Ended(error=error)
