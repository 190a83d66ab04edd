"""Faults of what providers share: each provider gets its outcomes all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from drivers.virtual import VirtualWorld

from eventbus import EventProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Admin = Callable[..., Any]
Streams = Callable[[], list[str]]
Until = Callable[..., Awaitable[None]]


async def test_all_providers_get_their_outcomes_after_the_stream_was_lost(
    make_provider: MakeProvider,
    stack: AsyncExitStack,
    admin: Admin,
    streams: Streams,
    logs: list[MutableMapping[str, Any]],
) -> None:
    worker, providers = make_provider(name="w"), [make_provider() for _ in range(5)]
    go = asyncio.Event()

    @worker.on("ask", concurrency=50)
    async def ask(n: int) -> int:
        await go.wait()
        return n

    async with worker.worker():
        (other,) = streams()
        for provider in providers:
            await stack.enter_async_context(provider)
        emissions = [each.emit("ask", n, reply_timeout=None) for n, each in enumerate(providers)]
        await asyncio.gather(*(each.enqueued() for each in emissions))
        (stream,) = set(streams()) - {other}
        admin("DEL", stream)
        go.set()
        latest = await stack.enter_async_context(make_provider())  # its start makes the stream anew
        assert await asyncio.wait_for(latest.emit("ask", 99, reply_timeout=None), 240) == 99
        assert [await asyncio.wait_for(each, 240) for each in emissions] == list(range(5))
        assert [each["event"] for each in logs].count("the reply stream was gone, looking outcomes up") == 1
        await stack.aclose()


@pytest.mark.slow
async def test_all_providers_go_on_after_their_connections_were_cut(
    make_provider: MakeProvider, stack: AsyncExitStack, virtual: VirtualWorld, until: Until
) -> None:
    worker, providers = make_provider(name="w"), [make_provider() for _ in range(5)]
    done: list[int] = []

    @worker.on("ask", concurrency=20)
    async def ask(n: int) -> int:
        done.append(n)
        return n

    async with worker.worker():
        for provider in providers:
            await stack.enter_async_context(provider)
        emissions = [
            provider.emit("ask", 1000 * at + n, reply_timeout=None)
            for n in range(200)
            for at, provider in enumerate(providers)
        ]
        for cuts in range(1, 4):
            await until(lambda cuts=cuts: len(done) > cuts * 300, "some are done")
            virtual.network.lose_connections()
        expected = [1000 * at + n for n in range(200) for at in range(5)]
        assert [await asyncio.wait_for(each, 240) for each in emissions] == expected
        await stack.aclose()
    assert sorted(done) == sorted(expected)  # none of them twice


@pytest.mark.real
async def test_a_server_that_forgot_its_scripts_costs_no_provider_an_emission(
    make_provider: MakeProvider, stack: AsyncExitStack, admin: Admin
) -> None:
    worker, providers = make_provider(name="w"), [make_provider() for _ in range(5)]
    worker.on("ask")(lambda n: n)
    async with worker.worker():
        for provider in providers:
            await stack.enter_async_context(provider)
        for round_ in range(3):
            admin("SCRIPT", "FLUSH")
            emissions = [each.emit("ask", n + round_) for n, each in enumerate(providers)]
            assert [await asyncio.wait_for(each, 240) for each in emissions] == [n + round_ for n in range(5)]
        await stack.aclose()


@pytest.mark.parametrize("text", ["short", "x" * 20_000])
async def test_a_reply_that_overtakes_the_answer_to_a_join_of_another_provider_is_delivered(
    make_provider: MakeProvider, text: str
) -> None:
    worker, first, second = make_provider(name="w"), make_provider(), make_provider()
    go = asyncio.Event()

    @worker.on("ask")
    async def ask(_: Any) -> str:
        await go.wait()
        return text

    async with worker.worker(), first, second:
        original = first.emit("ask", idempotency_key="k")
        await original.enqueued()
        release, store = asyncio.Event(), second._life.store  # pyright: ignore[reportPrivateUsage]
        assert store is not None
        add = store.add
        is_done = asyncio.Event()

        async def held(*arguments: Any, **options: Any) -> Any:
            answer = await add(*arguments, **options)
            is_done.set()
            await release.wait()
            return answer

        store.add = held  # type: ignore[method-assign]
        joined = second.emit("ask", idempotency_key="k", reply_timeout=None)
        await is_done.wait()
        go.set()
        assert await original == text  # one message for both, and the second is not ready for it
        assert not joined.done()
        release.set()
        assert await asyncio.wait_for(joined, 240) == text
