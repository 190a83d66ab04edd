"""Threads for sync handlers, under a limit of our own.

A thread cannot be cancelled: when its job times out the thread goes on. So the limiter's
token returns when the thread really ends, not when somebody stops waiting for it; a
handler that never ends costs one place, and never a growing number of threads.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["Threads"]


class Threads:
    """A bounded pool of threads for one event loop."""

    def __init__(self, limit: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=limit, thread_name_prefix="eventbus-handler")
        self._tokens = asyncio.Semaphore(limit)

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run `call` in a thread, in a copy of the caller's context. Cancelling stops the waiting only."""
        await self._tokens.acquire()
        loop = asyncio.get_running_loop()
        try:
            future = loop.run_in_executor(self._pool, contextvars.copy_context().run, call)
        except BaseException:
            self._tokens.release()
            raise
        # The inner future ends with the thread; only the shield around it is cancelled.
        future.add_done_callback(self._return_token)
        return await asyncio.shield(future)

    def close(self) -> None:
        """Take no more calls; threads that run are left to end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _return_token(self, future: asyncio.Future[Any]) -> None:
        self._tokens.release()
        if not future.cancelled():
            future.exception()  # nobody may be left to hear it; then it is not news
