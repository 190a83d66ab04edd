"""The thread pool for sync handlers, with a limit of its own.

A thread cannot be cancelled: it goes on after its job has timed out. So a thread keeps its token of the limit
until it really ends, not until its caller stops waiting. A handler that never ends therefore costs one token,
never a growing number of threads.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from eventbus.model.containment import contained
from eventbus.runtime.places import Places


class ThreadPool:
    """A bounded pool of threads for one event loop."""

    def __init__(self, limit: int, places: Places | None = None) -> None:
        """Run at most `limit` calls at a time. A thread that outlives its caller keeps one of `places` until
        it ends.
        """
        self._places = places
        self._pool = ThreadPoolExecutor(max_workers=limit, thread_name_prefix="eventbus-handler")
        self._tokens = asyncio.Semaphore(limit)

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run `call` in a thread, in a copy of the caller's context. A cancellation ends only the waiting.

        Raises what `call` raises; RuntimeError for a StopIteration, Contained for what is no Exception.
        """
        await self._tokens.acquire()
        loop = asyncio.get_running_loop()
        try:
            around = contextvars.copy_context()
            future = loop.run_in_executor(self._pool, around.run, partial(_as_in_a_coroutine, call))
        except BaseException:
            self._tokens.release()
            raise
        # The inner future ends with the thread, because a cancellation reaches only the shield around it.
        future.add_done_callback(self._return_token)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if self._places is not None and not future.done():
                self._places.keep()
                future.add_done_callback(self._return_place)
            raise

    def close(self) -> None:
        """Refuse further calls. Running threads go on to their end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _return_place(self, _: asyncio.Future[Any]) -> None:
        if self._places is not None:
            self._places.leave()

    def _return_token(self, future: asyncio.Future[Any]) -> None:
        self._tokens.release()
        if not future.cancelled():
            future.exception()  # marks it as retrieved: asyncio would log it if the caller no longer waits


def _as_in_a_coroutine(call: Callable[[], Any]) -> Any:
    """Call it; raise a StopIteration as a RuntimeError, as coroutines do. No future takes one: on Python 3.11
    it never ends.
    """
    try:
        return contained(call)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error
