"""What becomes of a test that hangs: it fails alone.

pytest-timeout raises in the code that its signal interrupts. That may be a loop of ours, which ends for good,
or the event loop: then the tests after it wait in vain, too. So a test that is a coroutine is cancelled where
it waits. A minute later, for one that blocks the event loop or does not end, it is as pytest-timeout has it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
import pytest_timeout  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["pytest_pyfunc_call", "pytest_timeout_set_timer"]

_PATIENCE = 240.0

_end = pytest.StashKey[Callable[[], object]]()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return (yield)

    @functools.wraps(test)
    async def limited(*given: Any, **named: Any) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as scope:
            # Not by a timer of the loop, whose time some tests move.
            expire = functools.partial(scope.reschedule, 0.0)
            pyfuncitem.stash[_end] = functools.partial(loop.call_soon_threadsafe, expire)
            try:
                await test(*given, **named)
            finally:
                del pyfuncitem.stash[_end]

    pyfuncitem.obj = limited
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None
    is_told = False

    def ring(*_: Any) -> None:
        nonlocal is_told
        if is_told or _end not in item.stash:
            pytest_timeout.timeout_sigalrm(item, settings)
        is_told = True
        item.stash[_end]()

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, _PATIENCE)
    return True
