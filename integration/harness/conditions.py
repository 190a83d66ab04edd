"""Functions that wait for named conditions, with deadlines, or for the length of a fault.

No test sleeps to let something happen. `last` is only for the length of a fault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["WITHIN", "last", "until", "wait_until"]

WITHIN = 240.0
"""Seconds; generous, because a machine may be busy: it only ends what hangs."""
_LOOK = 0.005


def wait_until(
    what: str,
    condition: Callable[[], object],
    *,
    within: float = WITHIN,
    story: Callable[[], str] | None = None,
) -> None:
    """Wait until the condition holds; otherwise fail with its name, and with `story` if there is one."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(_missed(what, within, story))
        time.sleep(_LOOK)


async def until(
    what: str,
    condition: Callable[[], object],
    *,
    within: float = WITHIN,
    story: Callable[[], str] | None = None,
) -> None:
    """Like `wait_until`, for tests whose event loop must keep running."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(_missed(what, within, story))
        await asyncio.sleep(_LOOK)


async def last(seconds: float) -> None:
    """Let the current fault go on for this long."""
    await asyncio.sleep(seconds)


def _missed(what: str, within: float, story: Callable[[], str] | None) -> str:
    return f"not within {within:g} s: {what}" + (f"\n{story()}" if story else "")
