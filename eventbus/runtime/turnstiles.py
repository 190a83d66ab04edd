"""Turnstiles: a lock by name, made while somebody uses it, that lets calls through in the order in which they
came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Turnstiles:
    """Locks by name, of those that somebody uses."""

    def __init__(self) -> None:
        self.used: dict[str, _Turnstile] = {}
        """Those locks, by name."""

    @asynccontextmanager
    async def pass_through(self, name: str, *, is_needed: bool) -> AsyncGenerator[None]:
        """Hold the lock of `name`; unless it is needed, only if others use it."""
        lock = self.used.get(name)
        if lock is None and not is_needed:
            yield
            return
        lock = lock or self.used.setdefault(name, _Turnstile())
        lock.count += 1
        try:
            async with lock.lock:
                yield
        finally:
            lock.count -= 1
            if not lock.count:
                self.used.pop(name, None)


class _Turnstile:
    """A lock, and how many calls use it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0
