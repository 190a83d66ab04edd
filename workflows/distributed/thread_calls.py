"""Calls of plain functions in the threads of a worker, which cannot be cancelled.

What must always hold: a function that was revoked before it began never begins; what a function did counts,
if it ends in time; the place of a function that runs on is kept before its caller can give it back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio

from eventbus.lowlevel import ThreadPool
from workflows.execution.attempt import PATIENCE, StillRuns


async def call_in_thread(threads: ThreadPool, call: Callable[[], Any]) -> Any:
    """Run a plain function in one of `threads`.

    A thread cannot be cancelled. If this call is cancelled, it still returns the function's value if that
    comes within `PATIENCE` seconds, because what the function did must be recorded. Raises StillRuns if
    the function runs longer.
    """
    plain = _Plain(call)
    thread = asyncio.ensure_future(threads.run(plain.run))
    try:
        return await asyncio.shield(thread)  # a cancel must not detach the thread's value from this call
    except asyncio.CancelledError:
        if plain.revoke():  # it still waited for a thread, so nothing was done
            thread.cancel()
            raise
        with anyio.CancelScope(shield=True):  # the repeats of anyio are no second cancellation
            return await _let_end(thread)


class _Plain:
    """A plain function that either begins once, or is revoked and never begins."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._taken = threading.Lock()

    def run(self) -> Any:
        """Call the function, unless it was revoked."""
        return self._call() if self._taken.acquire(blocking=False) else None

    def revoke(self) -> bool:
        """Prevent the function from beginning; return False if it has begun."""
        return self._taken.acquire(blocking=False)


async def _let_end(thread: asyncio.Future[Any]) -> Any:
    """Return the value of a cancelled function if it ends in time; an error of its own no longer matters."""
    try:
        await asyncio.wait({thread}, timeout=PATIENCE)
    except asyncio.CancelledError:
        pass  # cancelled a second time: do not wait any longer
    if not thread.done():
        thread.add_done_callback(_forget)
        thread.cancel()  # ends the waiting alone; a pool then counts the thread until it ends
        await _settle_down(thread)
        raise StillRuns
    if thread.cancelled() or thread.exception() is not None:
        raise asyncio.CancelledError
    return thread.result()


async def _settle_down(thread: asyncio.Future[Any]) -> None:
    """Let a cancelled wait end. Before that, the pool does not keep the place that the caller gives back.

    This takes a few rounds of the event loop, so a cancellation meanwhile changes nothing: StillRuns follows.
    """
    while not thread.done():
        try:
            await asyncio.wait({thread})
        except asyncio.CancelledError:
            pass


def _forget(thread: asyncio.Future[Any]) -> None:
    if not thread.cancelled():
        thread.exception()  # marks it as retrieved, so that asyncio does not log it
