"""What an emission says for its own job: how long an attempt may take, and when it expires."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EmissionExpired, Event, EventProvider, HandlerError, Retry

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


async def test_the_timeout_of_an_emission_goes_before_that_of_the_handler(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(retry=Retry(attempts=1))

    @provider.on("short", timeout="50ms")
    @provider.on("long", timeout="60s")
    @provider.on("none")
    async def wait(pause: float) -> str:
        await asyncio.sleep(pause)
        return "done"

    async with provider.worker():
        for event in ("long", "none"):
            with pytest.raises(HandlerError, match=r"longer than its timeout of 0\.05 s"):
                await provider.emit(event, 30, timeout="50ms")
        assert await provider.emit("short", 0.2, timeout="60s") == "done"
        assert await provider.emit("short", 0.2, timeout=0) == "done"
        with pytest.raises(HandlerError, match=r"longer than its timeout of 0\.05 s"):
            await provider.emit("short", 30)


@pytest.mark.real
async def test_the_timeout_of_an_emission_counts_from_the_place_of_a_named_pool(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    provider.pool("one", threads=1)

    @provider.on("slow", pool="one")
    def wait(pause: float) -> str:
        time.sleep(pause)
        return "done"

    async with provider.worker():
        first, second = provider.emit("slow", 0.3), provider.emit("slow", 0.0, timeout="250ms")
        assert [await first, await second] == ["done", "done"]
        with pytest.raises(HandlerError, match=r"longer than its timeout of 0\.05 s"):
            await provider.emit("slow", 0.3, timeout="50ms")


async def test_the_ttl_of_an_emission_goes_before_that_of_the_event(make_provider: MakeProvider) -> None:
    provider = make_provider()
    quick, plain = Event("quick", payload=int, ttl="20ms"), Event("plain", payload=int)
    provider.on(quick)(lambda n: n)
    provider.on(plain)(lambda n: n)
    async with provider:
        kept = provider.emit(quick, 1, ttl="60s")
        gone = [provider.emit(quick, 2), provider.emit(plain, 3, ttl="20ms")]
        for each in (kept, *gone):
            await each.enqueued()
        await asyncio.sleep(0.05)  # longer than the ttl: nobody works yet
        async with provider.worker():
            assert await kept == 1
            for each in gone:
                with pytest.raises(EmissionExpired, match=r"within its ttl of 0\.02 s"):
                    await each


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": -1}, "expected timeout to be from 0 s"),
        ({"timeout": "soon"}, "expected timeout to be seconds.* got: 'soon'"),
        ({"ttl": 0}, "expected ttl to be more than 0 s, got: 0"),
        ({"ttl": True}, "expected ttl to be seconds"),
    ],
)
async def test_terms_that_cannot_be_are_refused_at_emit(
    make_provider: MakeProvider, options: dict[str, Any], message: str
) -> None:
    provider = make_provider()
    async with provider:
        with pytest.raises(DefinitionError, match=message):
            provider.emit("plain", 1, **options)


async def test_none_means_that_a_term_is_not_given(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("plain")(lambda n: n)
    async with provider.worker():
        assert await provider.emit("plain", 1, timeout=None, ttl=None, throttle=None, debounce=None) == 1
