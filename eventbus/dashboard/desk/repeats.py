"""Repeats: an action that is sent twice with one key happens once, and is answered twice.

Forms have such a key in a hidden field, so that two clicks are one action; programs send `Idempotency-Key`. The keys are kept
in this process, the newest 1,000 of them for ten minutes: what must happen once in spite of a restart needs a key that the
server keeps, as that of an emission or the number of a flow's run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from eventbus.dashboard.problem import Problem
from eventbus.model import clock

__all__ = ["LONGEST_KEY", "Repeats", "check_length"]

_MOST = 1000
_SECONDS = 600.0
LONGEST_KEY = 128


def check_length(key: str) -> None:
    """Raise Problem, 422, for an idempotency key that is too long."""
    if len(key) > LONGEST_KEY:
        raise Problem(422, f"expected an idempotency key of at most {LONGEST_KEY} characters, got {len(key)}")


class Repeats:
    """Remembers the answers of actions by their keys."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[float, asyncio.Task[Any]]] = {}

    async def once(self, key: tuple[str, ...], do: Callable[[], Awaitable[Any]]) -> Any:
        """Return what `do` returns, or what it returned for this key before. An error is forgotten.

        The last part of `key` is the caller's; without one the action is done each time.
        """
        if not key[-1]:
            return await do()
        check_length(key[-1])
        begun = self._known.get(key)
        if begun is None or begun[0] < clock.monotonic() - _SECONDS:
            while len(self._known) >= _MOST:
                self._known.pop(next(iter(self._known)))
            begun = self._known[key] = (clock.monotonic(), asyncio.ensure_future(_run(do)))
        try:
            # Shielded: whoever asks second must not lose the answer because the first one went away.
            return await asyncio.shield(begun[1])
        except BaseException:
            if begun[1].done():
                self._known.pop(key, None)
            raise


async def _run(do: Callable[[], Awaitable[Any]]) -> Any:
    return await do()
