"""Turnstiles: a lock by name, made while somebody uses it, that lets calls through in the order in which they
came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

__all__ = ["Turnstiles"]


class Turnstiles:
    """The locks that somebody uses. False if there is none."""

    def __init__(self) -> None:
        self._used: dict[str, _Turnstile] = {}

    def __bool__(self) -> bool:
        return bool(self._used)

    @asynccontextmanager
    async def pass_through(self, name: str, *, is_needed: bool) -> AsyncGenerator[None]:
        """Hold the lock of `name`; unless it is needed, only if others use it."""
        lock = self._used.get(name)
        if lock is None and not is_needed:
            yield
            return
        lock = lock or self._used.setdefault(name, _Turnstile())
        lock.count += 1
        try:
            async with lock.lock:
                yield
        finally:
            lock.count -= 1
            if not lock.count:
                self._used.pop(name, None)


class _Turnstile:
    """A lock, and how many calls use it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0
