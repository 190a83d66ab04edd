"""The relay of progress from another process: it records the newest value, one call after the other.

What must always hold: nothing is recorded after the relay has ended, except by a call that was under way; a
failure to record fails no handler, because the handler did not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

from eventbus.errors import EventBusError
from eventbus.telemetry.logging import get_logger

_LAST = 1.0
"""Seconds for recording the last value of an attempt that has ended."""

_log = get_logger("eventbus.worker")


class ProgressRelay:
    """The progress of one attempt. Use it as an async context manager around the attempt."""

    def __init__(self, write: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """`write` records a value, JSON text."""
        self._write = write
        self._newest: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        task = self._task
        if task is None:
            return
        try:
            if kind is None:  # the handler has returned: its last value counts
                await asyncio.wait({task}, timeout=_LAST)
        finally:
            self._newest = None
            task.cancel()

    def put(self, message: bytes) -> None:
        """Record this value, in place of one that is not on its way yet. Raises UnicodeError if it is no
        text.
        """
        self._newest = message.decode()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="eventbus-progress")

    async def _run(self) -> None:
        try:
            while self._newest is not None:
                text, self._newest = self._newest, None
                await self._write(text)
        except EventBusError as error:
            _log.warning("progress not recorded", error=str(error))
        finally:
            self._task = None
