"""One run of a user's function that ends, whatever the function does.

The same words as the engine's: a timeout is a failed attempt, also when the function swallows its
cancellation and returns; a function that ignores its cancellation is cancelled once more after
`patience`, then given up on. What differs: after a cut from outside (the flow is cancelled, or its
time is over) a value that still comes counts, since what was done must be undone.

What must hold: `run` returns only when the function has ended or was given up on, so that nothing
is undone while it is still being done; it never raises what the function raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from eventbus.lowlevel import get_logger

__all__ = ["PATIENCE", "Attempt", "Ended", "StillRuns"]

PATIENCE = 1.0
"""Seconds after which a function that ignores its cancellation is cancelled again, then given up on."""

_log = get_logger("workflows")


class StillRuns(Exception):
    """A plain function was cancelled and goes on in its thread: nobody knows what it does still."""


class Ended(msgspec.Struct, frozen=True):
    """How an attempt ended: with a value, with an error, or cut from outside (neither).

    `is_lost`: it was cut and given up on; nobody knows what it does still.
    """

    value: Any = None
    error: BaseException | None = None
    is_cut: bool = False
    is_lost: bool = False


class Attempt:
    """One run of `call`; `run` is awaited once."""

    def __init__(
        self,
        call: Callable[[], Awaitable[Any]],
        *,
        what: str,
        timeout: float | None,
        patience: float = PATIENCE,
    ) -> None:
        """`what` names it in errors and logs, such as `step 'charge'`; `timeout` in seconds or None."""
        self._call = call
        self._what = what
        self._timeout = timeout
        self._patience = patience
        self._cut = asyncio.Event()

    def cut(self) -> None:
        """Cancel the function from outside; a value that it returns all the same still counts."""
        self._cut.set()

    async def run(self) -> Ended:
        """Run the function to its end. Cancelling this cancels it and waits for it."""
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
            await self._end(task)
            raise
        finally:
            cut.cancel()

    async def _end(self, task: asyncio.Task[Ended]) -> None:
        """Cancel politely, again after `patience`, then give up."""
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
            late.__cause__ = task.result().error  # shows where it was
        return late


async def _guarded(call: Callable[[], Awaitable[Any]]) -> Ended:
    """Run `call` and return its outcome, so that no error of a user ends the event loop."""
    try:
        return Ended(value=await call())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (whatever a function raises)
        return Ended(error=error)
