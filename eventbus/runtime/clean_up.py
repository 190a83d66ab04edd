"""Clean-up that awaits, and comes to its end under every kind of cancellation.

asyncio cancels a task once; who awaits in a `finally` block after that is not disturbed, unless somebody
cancels again. anyio cancels each further await, until its scope is left: `with anyio.move_on_after(1):`
cuts off every `finally` block inside that awaits. So clean-up runs in a task of its own, and its caller
waits for it behind a shield of anyio.

What must always hold: what `run_to_end` begins is ended, or cancelled at its deadline; a cancellation that
came meanwhile is raised after that, so it is never lost.

Where a second cancellation of asyncio means something by itself (a handler that ignores the first one), a
plain `anyio.CancelScope(shield=True)` around the wait takes the place of this: it keeps off anyio's repeats
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio

from eventbus.model import clock
from eventbus.telemetry.logging import get_logger

T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds for closing a connection, or a few of them."""
_MOMENT = 0.1
"""Seconds."""
_LOOKS = 100
"""Moments after which a program counts as one that goes on, although all its tasks were cancelled."""
_CLEAN_UP = "eventbus-clean-up "
"""How the names of tasks for clean-up begin."""

_log = get_logger("eventbus")


async def run_to_end(work: Coroutine[Any, Any, T], what: str, *, within: float = _PATIENCE) -> T | None:
    """Run clean-up to its end, also if the caller is cancelled, once or again; then raise the cancellation.

    After `within` seconds it is cancelled, logged with the name `what`, and left behind; then this returns
    None. Raises what the work raises.
    """
    task = asyncio.get_running_loop().create_task(work, name=f"{_CLEAN_UP}{what}")
    end = clock.monotonic() + within
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done() and (left := end - clock.monotonic()) > 0:
            try:
                await asyncio.wait({task}, timeout=left)
            except asyncio.CancelledError as error:
                cancelled = error
    if not task.done():
        _log.warning("clean-up takes too long, cancelled", what=what)
        task.add_done_callback(_forget)
        task.cancel()
    elif cancelled is not None:
        _forget(task)
    if cancelled is not None:
        raise cancelled
    return task.result() if task.done() else None


def call_unless_ending(function: Callable[..., object], *args: Any) -> None:
    """Call a function a moment after somebody from outside has cancelled a task of ours; not if that was the
    end of the event loop, which a new call would outlive, and which nobody needs to hear of.

    The end of a loop cancels all tasks at once. So the call waits while every task is being cancelled, for
    `_LOOKS` moments at most, because a program may also cancel all of its tasks and go on.
    """
    _call_later(_LOOKS, function, args)


def _call_later(looks: int, function: Callable[..., object], args: tuple[Any, ...]) -> None:
    def look() -> None:
        if looks and all(map(_is_ending, asyncio.all_tasks())):
            _call_later(looks - 1, function, args)
        else:
            function(*args)

    asyncio.get_running_loop().call_later(_MOMENT, look)


def _is_ending(task: asyncio.Task[Any]) -> bool:
    return task.cancelling() > 0 or task.get_name().startswith(_CLEAN_UP)


def _forget(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved, so that asyncio does not log it
