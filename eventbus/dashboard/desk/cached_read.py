"""A cached read: one that many viewers share, so that one more of them costs the server nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from eventbus.model import clock

T = TypeVar("T")


class CachedRead(Generic[T]):
    """Keeps what `read` returned for so many `seconds`. Of callers that come meanwhile none begins a second
    read.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, T]], seconds: float = 2.0) -> None:
        self._read = read
        self._seconds = seconds
        self._reading: asyncio.Task[T] | None = None
        self._until = 0.0

    async def read(self) -> T:
        """Return the newest answer. Raises what the read raises, to all who wait for it."""
        reading = self._reading
        # A mounted app may meet another event loop when its host starts again; a task of the old one never
        # ends.
        is_usable = reading is not None and reading.get_loop() is asyncio.get_running_loop()
        if reading is None or not is_usable or (reading.done() and self._is_stale(reading)):
            reading = self._reading = asyncio.create_task(self._read(), name="eventbus-dashboard-read")
            reading.add_done_callback(self._note_end)
        # Shielded: a viewer that goes away must not end the read of the others.
        return await asyncio.shield(reading)

    def forget(self) -> None:
        """Let the next caller read anew, because something was changed. A read under way may not have
        it yet.
        """
        self._reading = None

    def _is_stale(self, reading: asyncio.Task[T]) -> bool:
        return reading.cancelled() or reading.exception() is not None or clock.monotonic() >= self._until

    def _note_end(self, reading: asyncio.Task[T]) -> None:
        self._until = clock.monotonic() + self._seconds
        if not reading.cancelled():
            reading.exception()  # nobody may be left who asks for it
