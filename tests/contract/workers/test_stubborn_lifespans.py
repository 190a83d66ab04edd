"""Lifespans that take too long or swallow their cancellation: a worker still ends in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from eventbus import EventProvider, ProviderStopped
from eventbus.handlers import worker

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Stubborn:
    """A lifespan that swallows its cancellations, in the worker's start or at its end, until it is let go."""

    def __init__(self, provider: EventProvider, at: str) -> None:
        self.strikes = 0
        self.is_outer_left = False
        self.hangs = asyncio.Event()
        self.may_end = asyncio.Event()
        self._hangs_at = at
        provider.on("ask")(lambda n: n)
        provider.lifespan(self.outer)
        provider.lifespan(self.stubborn)

    async def outer(self) -> AsyncIterator[None]:
        yield
        self.is_outer_left = True

    async def stubborn(self) -> AsyncIterator[None]:
        if self._hangs_at == "start":
            await self._hang()
        yield
        await self._hang()

    async def _hang(self) -> None:
        self.hangs.set()
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.strikes += 1


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits less long for lifespans."""
    monkeypatch.setattr(worker, "_LAST_STEPS", 0.1)
    monkeypatch.setattr(worker, "_PATIENCE", 0.1)


def _told(logs: list[Any]) -> list[tuple[str, str]]:
    errors = [each for each in logs if each["log_level"] == "error"]
    return [(each["event"], each["lifespan"]) for each in errors]


_CUT = [
    ("lifespan takes too long, cancelled", "Stubborn.stubborn"),
    ("lifespan ignores its cancellation, left behind", "Stubborn.stubborn"),
]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("how", ["block", "stop"])
async def test_one_that_ignores_its_cancellation_is_left_behind_with_its_name(
    make_provider: MakeProvider, logs: list[Any], how: str, until: Until
) -> None:
    provider = make_provider(grace=0.1)
    hanging = Stubborn(provider, "end")
    async with asyncio.timeout(240), provider:
        async with provider.worker() as worker:
            assert await provider.emit("ask", 5) == 5
            if how == "stop":
                await provider.stop()
        await asyncio.wait_for(worker.wait(), 240)
        assert (hanging.strikes, hanging.is_outer_left, _told(logs)) == (2, False, _CUT)
        hanging.may_end.set()  # its task goes on where it was, and does no harm
        await until(lambda: hanging.is_outer_left, "it ended by itself")
        provider.on("other")(lambda n: n)
        await provider.start()
        assert _told(logs) == _CUT


@pytest.mark.usefixtures("hasty")
async def test_one_that_ignores_a_stop_while_it_is_entered_is_left_behind(
    make_provider: MakeProvider, logs: list[Any], until: Until
) -> None:
    provider = make_provider(grace=0.1)
    hanging = Stubborn(provider, "start")
    await provider.start()
    starting = asyncio.create_task(provider.worker().__aenter__())
    await hanging.hangs.wait()
    async with asyncio.timeout(240):
        await provider.stop()
        with pytest.raises(ProviderStopped, match="stopped before it was ready"):
            await starting
    assert (hanging.strikes, _told(logs)) == (3, _CUT)
    hanging.may_end.set()
    await until(lambda: hanging.is_outer_left, "it ended by itself")


@pytest.mark.usefixtures("hasty")
async def test_a_stop_at_once_gives_one_that_ignores_it_two_moments(make_provider: MakeProvider) -> None:
    provider = make_provider(grace=600)
    hanging = Stubborn(provider, "end")
    async with asyncio.timeout(240), provider.worker() as worker:
        worker.request_stop()
        await hanging.hangs.wait()
        worker.request_stop(at_once=True)
        worker.request_stop(at_once=True)
        await worker.wait()
        assert hanging.strikes == 2
        hanging.may_end.set()


async def test_one_that_ends_after_its_cancellation_does_not_hold_the_others_up(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LAST_STEPS", 0.0)
    provider = make_provider(grace=0.1)
    provider.on("ask")(lambda n: n)
    told: list[str] = []

    @provider.lifespan
    async def outer() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.sleep(0.05)
            told.append("outer left")

    @provider.lifespan
    async def slow() -> AsyncIterator[None]:
        try:
            yield
            await asyncio.Event().wait()
        finally:
            told.append("slow left")

    async with asyncio.timeout(240), provider.worker():
        pass
    assert told == ["slow left", "outer left"]
