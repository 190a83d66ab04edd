"""Shutdown: its order, and that it ends in time, whatever the server and the handlers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from drivers.virtual import VirtualWorld

from eventbus import EventContext, EventProvider, ProviderStopped

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[Any]


async def test_a_handler_that_drains_still_emits_and_hears_the_result(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    provider, other = make_provider(), make_provider()
    began, go = asyncio.Event(), asyncio.Event()

    @provider.on("outer")
    async def outer(n: int, ctx: EventContext) -> int:
        began.set()
        await go.wait()
        return 1 + await ctx.emit("inner", n)

    other.on("inner")(lambda n: 10 * n)
    await stack.enter_async_context(other.worker())
    async with provider, provider.worker():
        emission = other.emit("outer", 2)
        await began.wait()
        stopping = asyncio.create_task(provider.stop())
        await asyncio.sleep(0)
        go.set()
        await stopping
        assert await emission == 21


async def test_who_waits_for_a_job_in_the_server_is_told_before_the_unsent_is_flushed(
    make_provider: MakeProvider, virtual: VirtualWorld, until: Until
) -> None:
    provider = make_provider()
    await provider.start()
    waiting = provider.emit("ask", 1)
    await waiting.enqueued()
    virtual.take_server_away()
    unsent = provider.emit("ask", 2)
    stopping = asyncio.create_task(provider.stop())
    await until(waiting.done, "its waiter is told")
    assert not unsent.done()
    with pytest.raises(ProviderStopped):
        await waiting
    await stopping
    with pytest.raises(Exception, match="provider stopped"):
        await unsent


@pytest.mark.parametrize("is_at_work", [False, True])
async def test_a_stop_ends_when_the_server_is_gone(
    make_provider: MakeProvider, virtual: VirtualWorld, is_at_work: bool
) -> None:
    provider = make_provider(grace=0.5)
    began = asyncio.Event()

    @provider.on("ask")
    async def ask(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(provider)
        await stack.enter_async_context(provider.worker())
        emission = provider.emit("ask")
        await began.wait()
        virtual.take_server_away()
        unsent = provider.emit("ask") if is_at_work else None
        await provider.stop()
    for each in (emission, unsent):
        if each is not None:
            with pytest.raises(Exception, match="provider stopped"):
                await each


async def test_a_connection_lost_in_the_middle_of_the_drain_loses_no_outcome(
    make_provider: MakeProvider, virtual: VirtualWorld
) -> None:
    provider, asker = make_provider(), make_provider()
    began, go = asyncio.Event(), asyncio.Event()

    @provider.on("ask")
    async def ask(n: int) -> int:
        began.set()
        await go.wait()
        return n

    async with asker:
        async with provider.worker():
            emission = asker.emit("ask", 1)
            await began.wait()
            stopping = asyncio.create_task(provider.stop())
            virtual.take_server_away()
            go.set()
            virtual.bring_server_back()
            await stopping
        assert await emission == 1


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_stop(
    make_provider: MakeProvider, until: Until, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider(grace=0.05)
    began, go = asyncio.Event(), asyncio.Event()

    @provider.on("ask")
    async def ask(_: Any) -> None:
        began.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                pass

    async with provider:
        provider.emit("ask", reply=False)
        async with provider.worker():
            await began.wait()
        assert not go.is_set()
        assert admin("LLEN", f"{prefix}:2:{{0}}:ready:event.ask") == 1
    go.set()


async def test_a_stop_ends_a_worker_that_cannot_start(
    make_provider: MakeProvider, virtual: VirtualWorld, until: Until
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    await provider.start()
    virtual.take_server_away()
    started: list[asyncio.Task[Any]] = [
        asyncio.create_task(_enter(provider)),
        asyncio.create_task(provider.subscribe("more", lambda n: n)),
    ]
    await until(lambda: provider._life.worker is not None, "the worker is starting")
    await asyncio.wait_for(provider.stop(), 240)
    for each in started:
        with pytest.raises(ProviderStopped):
            await each


async def _enter(provider: EventProvider) -> None:
    async with provider.worker():
        raise AssertionError("the worker was ready without a server")


async def test_a_start_of_a_worker_that_is_cancelled_leaves_nothing_also_without_a_server(
    make_provider: MakeProvider, virtual: VirtualWorld, until: Until
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    await provider.start()
    virtual.take_server_away()
    starting = asyncio.create_task(_enter(provider))
    await until(lambda: provider._life.worker is not None, "the worker is starting")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(starting, 240)
    await asyncio.wait_for(provider.stop(), 240)


async def test_a_subscription_that_waits_for_the_server_ends_with_the_stop(
    make_provider: MakeProvider, virtual: VirtualWorld, until: Until
) -> None:
    provider = make_provider()
    async with provider:
        await provider.subscribe("one", lambda n: n)
        virtual.take_server_away()
        more = asyncio.create_task(provider.subscribe("two", lambda n: n))
        await until(lambda: "event.two" in (provider._life.worker or _none()).queues, "it is being added")
        await asyncio.wait_for(provider.stop(), 240)
        with pytest.raises(ProviderStopped):
            await more


def _none() -> Any:
    raise AssertionError("no worker")


async def test_a_stop_whose_caller_is_cancelled_goes_on_and_the_next_one_waits_for_it(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider(grace=0.2)
    for steps in range(0, 30, 3):
        began = asyncio.Event()

        async def hang(_: Any, began: asyncio.Event = began) -> None:
            began.set()
            await asyncio.Event().wait()

        await provider.start()
        await provider.subscribe(f"ask{steps}", hang)
        emission = provider.emit(f"ask{steps}", 1, reply=False)
        await began.wait()
        stopping = asyncio.create_task(provider.stop())
        for _ in range(steps):
            await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await provider.stop()
        assert provider._life.loop is None
        await emission
        assert admin("ZCARD", f"{prefix}:2:{{0}}:workers") == 0, "the job was given back"


@pytest.mark.parametrize("times", [1, 2])
async def test_the_end_of_a_block_that_is_cancelled_gives_the_jobs_back_first(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, times: int
) -> None:
    provider = make_provider(grace=0.1)
    began = asyncio.Event()

    @provider.on("ask")
    async def hang(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async def serve() -> None:
        async with provider, provider.worker():
            provider.emit("ask", reply=False)
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await began.wait()
    for _ in range(times):  # the second one meets the stop
        serving.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert admin("ZCARD", f"{prefix}:2:{{0}}:workers") == 0
    assert provider._life.loop is None


async def test_a_scope_of_anyio_that_is_cancelled_lets_the_stop_end(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider(grace=0.1)

    @provider.on("ask")
    async def hang(_: Any) -> None:
        scope.cancel()
        await asyncio.Event().wait()

    with anyio.CancelScope() as scope:
        async with provider, provider.worker():
            provider.emit("ask", reply=False)
            await asyncio.Event().wait()
    assert provider._life.loop is None
    assert admin("ZCARD", f"{prefix}:2:{{0}}:workers") == 0
    assert admin("LLEN", f"{prefix}:2:{{0}}:ready:event.ask") == 1


async def test_a_handler_may_stop_its_own_provider(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider(grace=0.1)

    @provider.on("end")
    async def end(_: Any) -> None:
        await provider.stop()

    async with make_provider() as asker, provider.worker():
        await asker.emit("end", reply=False)
        await until(lambda: provider._life.loop is None, "it has stopped")


async def test_a_stop_that_is_told_twice_and_at_once_waits_for_no_grace(make_provider: MakeProvider) -> None:
    provider = make_provider(grace=600)
    began = asyncio.Event()

    @provider.on("ask")
    async def hang(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async with provider, provider.worker() as worker:
        provider.emit("ask", reply=False)
        await began.wait()
        worker.request_stop()
        stops = [asyncio.create_task(provider.stop()) for _ in range(2)]
        await asyncio.sleep(0)
        worker.request_stop(at_once=True)
        await asyncio.wait_for(asyncio.gather(*stops, worker.stop(at_once=True)), 240)


async def test_starts_and_stops_of_workers_in_any_order_end_stopped(make_provider: MakeProvider) -> None:
    provider = make_provider(grace=0)
    provider.on("ask")(lambda n: n)

    async def serve() -> None:
        try:
            async with provider.worker():
                assert await provider.emit("ask", 1) == 1
        except ProviderStopped:
            pass  # a stop came between

    for pause in range(0, 60, 4):
        serving = asyncio.create_task(serve())
        for _ in range(pause):
            await asyncio.sleep(0)
        stops = [provider.stop(), provider.stop()]
        await asyncio.gather(*stops, serving)
        await provider.stop()
        assert provider._life.loop is None
