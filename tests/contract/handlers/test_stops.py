"""A worker that stops gives back what its handlers have not finished; what they have begun stays begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from eventbus import EventContext, EventProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


async def test_a_job_that_a_stop_gave_back_keeps_its_payload_and_has_begun_for_its_ttl(
    make_provider: MakeProvider,
) -> None:
    first, second, emitter = make_provider(grace=0), make_provider(), make_provider()
    begun = asyncio.Event()

    @first.on("send")
    async def hang(letter: str, ctx: EventContext) -> None:
        await ctx.save(letter)
        begun.set()
        await asyncio.sleep(60)

    @second.on("send")
    async def go_on(letter: str, ctx: EventContext) -> list[str | None]:
        return [await ctx.saved(str), letter]

    async with emitter:
        async with first.worker():
            one = emitter.emit("send", "a", idempotency_key="k", keep_last=True, ttl="300ms")
            await begun.wait()
        two = emitter.emit("send", "b", idempotency_key="k", keep_last=True)
        await two.enqueued()
        await asyncio.sleep(0.4)
        async with second.worker():
            assert await one == ["a", "a"]
            assert await two == [None, "b"]
