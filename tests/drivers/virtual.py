"""Virtual time for our own tests: those with the mark `virtual` run in it, on a server of their own.

What waits there moves the time. Each answer of the server takes a moment, so that a test that asks again and
again moves it, too.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from eventbus.store.connection.connector import add_scheme
from eventbus.testing.loop_parts import waits_for
from eventbus.testing.network import SCHEME, Network, VirtualConnector, VirtualWire
from eventbus.testing.server import TestServer
from eventbus.testing.virtual_time import VirtualTime

__all__ = ["VirtualWorld", "is_virtual", "virtual", "virtual_by_mark"]


_MOMENT = 0.0001
"""Seconds that an answer takes."""
_BETWEEN = 0.005
"""Seconds between two questions of one who waits for something."""


class _Network(Network):
    """Answers come a moment later, but at once while a thread is at work: it may wait for them, and time
    stands.
    """

    def __init__(self, time: VirtualTime, server: TestServer) -> None:
        super().__init__(time, server)
        self._answers: deque[tuple[VirtualWire, Any]] = deque()
        self._stands = False

    def answer(self, wire: VirtualWire, reply: Any) -> None:
        self._answers.append((wire, reply))
        self._time.loop.call_later(_MOMENT, self._bring_next, context=self._context.copy())

    def _bring_next(self) -> None:
        if self._answers:
            super().answer(*self._answers.popleft())

    def bring_all(self) -> bool:
        """Bring what has been answered, in its order; returns whether there was anything."""
        is_any = bool(self._answers)
        while self._answers:
            self._bring_next()
        return is_any

    @contextmanager
    def stand_still(self) -> Generator[None]:
        """Let the server do nothing, until the context is left."""
        self._stands = True
        try:
            yield
        finally:
            self._stands = False
            self._flush_soon()

    def _flush(self) -> None:
        if self._stands:
            self._is_flush_due = False
        else:
            super()._flush()


class _Time(VirtualTime):
    """Lets the network hurry while a thread is at work."""

    network: _Network

    def _wait(self, timeout: float | None = None) -> list[Any]:
        if self.outside and self.network.bring_all():
            return self.parts.select(0)
        return super()._wait(timeout)


class VirtualWorld:
    """The time and the network of one test."""

    def __init__(self, time: VirtualTime, network: _Network) -> None:
        self.time = time
        self.network = network

    async def settle(self) -> float | None:
        """Return when nothing is due now; say when something is, in the loop's time."""
        await self.time.settle()
        return self.time.next_due()

    def pause(self, due: float | None, end: float) -> float:
        """Return the seconds for which one who asks again and again waits, up to `end` at most.

        If nothing was due while the question was under way, it would have the same answer until something is,
        which may be in a month.
        """
        if due is not None and due <= self.time.now:
            return _BETWEEN
        due = self.time.next_due()
        return max(min(end if due is None else due, end) - self.time.now, _BETWEEN)

    def take_server_away(self) -> None:
        """Cut all connections, and let nobody reach the server until `bring_server_back`."""
        self.network.is_away = True
        self.network.lose_connections()

    def bring_server_back(self) -> None:
        """Let the server be reached again, with all that it had."""
        self.network.is_away = False


@pytest.fixture
async def virtual() -> AsyncIterator[VirtualWorld]:
    """Virtual time in the loop of this test. It never leaps, because the tests look at upkeep, too."""
    world_time = _Time(start=int(time.time()), leaps=False)
    server = TestServer.get()
    world_time.install()
    try:
        server.clean()
        world_time.network = _Network(world_time, server)
        world = VirtualWorld(world_time, world_time.network)
        add_scheme(SCHEME, lambda url: VirtualConnector(url, world.network))
        main: Any = asyncio.current_task()
        world_time.on_standstill = lambda: _fail(main)
        yield world
    finally:
        world_time.remove()


def _fail(main: asyncio.Task[Any]) -> None:
    error = RuntimeError("everything waits, and nothing is due")
    waits = waits_for(main)
    if waits is None:
        raise error
    waits.set_exception(error)


def is_virtual(request: pytest.FixtureRequest) -> bool:
    """Whether a test runs in virtual time: it has the mark, an event loop, and no mark `real`."""
    marked = request.node.get_closest_marker("virtual") and not request.node.get_closest_marker("real")
    return bool(marked) and inspect.iscoroutinefunction(request.function)


@pytest.fixture(autouse=True)
def virtual_by_mark(request: pytest.FixtureRequest) -> None:
    """Begin virtual time before all other fixtures of a test with the mark."""
    if is_virtual(request):
        request.getfixturevalue("virtual")
