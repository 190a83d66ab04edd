"""Collections of handlers, and handlers that are taken back while their worker runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import (
    DefinitionError,
    Event,
    EventContext,
    EventProvider,
    Handlers,
    ProviderStopped,
    SyncContext,
    UsageError,
)

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_a_provider_serves_the_handlers_of_the_collections_that_it_includes(
    make_provider: MakeProvider,
) -> None:
    asked = Event("asked", payload=int, result=int)
    handlers, others = Handlers(), Handlers()

    @handlers.on(asked, concurrency=2, timeout="5s")
    async def double(n: int) -> int:
        return 2 * n

    @others.on("named", group="mail", pool="few")
    def named(n: int) -> None: ...

    first, second = make_provider(), make_provider()
    first.pool("few", threads=1)
    for provider in (first, second):
        provider.include(handlers)
    first.include(others)
    assert first.queues == ["event.asked", "event.named@mail"]
    async with first.worker(), second:
        assert await second.emit(asked, 4) == 8
    assert await double(3) == 6, "the function stays what it was"


def test_a_handler_that_does_not_fit_is_refused_by_its_collection() -> None:
    handlers = Handlers()
    asked = Event("asked", payload=int, result=int)
    with pytest.raises(DefinitionError, match="payload parameter"):

        @handlers.on(asked)
        async def wrong(n: str) -> int: ...

    with pytest.raises(DefinitionError, match="is async: annotate its context as EventContext"):

        @handlers.on(asked)
        async def mistaken(n: int, ctx: SyncContext) -> int: ...

    with pytest.raises(DefinitionError, match="without an event"):

        @handlers.on  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        async def bare(n: int) -> int: ...

    handlers.on(asked)(lambda n: n)
    with pytest.raises(DefinitionError, match="in this collection already"):
        handlers.on("asked")(lambda n: n)


def test_an_include_is_whole_or_refused(make_provider: MakeProvider) -> None:
    provider, handlers = make_provider(), Handlers()
    handlers.on("one")(lambda n: n)
    handlers.on("two", pool="unknown")(lambda n: n)
    with pytest.raises(DefinitionError, match="expected pool of handler"):
        provider.include(handlers)
    assert provider.queues == []
    provider.pool("unknown", threads=1)
    provider.include(handlers)
    with pytest.raises(DefinitionError, match="has a handler for group 'default' already"):
        provider.include(handlers)
    assert provider.queues == ["event.one", "event.two"]
    with pytest.raises(DefinitionError, match="expected a collection of handlers"):
        provider.include([])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_collection_that_was_included_does_not_grow(make_provider: MakeProvider) -> None:
    handlers = Handlers()
    make_provider().include(handlers)
    with pytest.raises(DefinitionError, match="has included this collection already"):
        handlers.on("late")(lambda n: n)


async def test_unsubscribe_waits_for_the_jobs_that_run_and_claims_no_more(
    make_provider: MakeProvider, until: Until
) -> None:
    provider, emitter = make_provider(), make_provider()
    started, go = asyncio.Event(), asyncio.Event()

    @provider.on("asked", concurrency=1)
    async def answer(n: int) -> int:
        started.set()
        await go.wait()
        return n

    provider.on("other")(lambda n: n)
    async with provider.worker() as worker, emitter:
        first, second = emitter.emit("asked", 1), emitter.emit("asked", 2)
        await started.wait()
        leaving = asyncio.create_task(provider.unsubscribe("asked"))
        await until(lambda: provider.queues == ["event.other"], "the handler is taken back")
        assert await emitter.emit("other", 3) == 3
        assert not leaving.done(), "the first job still runs"
        go.set()
        await leaving
        assert first.done() or await first == 1
        assert worker.queues == ["event.other"]
        assert await emitter.emit("other", 4) == 4
        found = await emitter.inspector.jobs.get(second.job_id)
        assert found.state == "waiting"
        await provider.subscribe("asked", lambda n: -n)
        assert await second == -2, "what waited is served by who subscribes next"


async def test_the_last_handler_may_be_taken_back(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("asked", group="mail")(lambda n: n)
    async with provider.worker() as worker:
        await provider.unsubscribe("asked", group="mail")
        assert worker.queues == []
        await provider.subscribe("asked", lambda n: n)
        assert await provider.emit("asked", 1) == 1
    async with provider:
        await provider.unsubscribe("asked")
    assert provider.queues == [], "no worker ran"


async def test_what_is_not_subscribed_cannot_be_taken_back(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("asked")(lambda n: n)
    with pytest.raises(ProviderStopped):
        await provider.unsubscribe("asked")
    async with provider:
        with pytest.raises(
            UsageError, match=r"event 'asked' has no handler for group 'mail' in this process"
        ):
            await provider.unsubscribe("asked", group="mail")


async def test_a_job_cannot_wait_for_the_end_of_its_own_handler(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("asked")
    async def leave(_: Any, ctx: EventContext) -> str:
        with pytest.raises(UsageError, match="its own end"):
            await provider.unsubscribe("asked")
        return ctx.event

    async with provider.worker():
        assert await provider.emit("asked", 1) == "asked"
        assert await provider.emit("asked", 2) == "asked", "it is served still"


async def test_a_subscribe_while_the_last_jobs_end_serves_again(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(n: int) -> str:
        started.set()
        await go.wait()
        return "old"

    provider.on("asked")(slow)
    async with provider.worker() as worker:
        first = provider.emit("asked", 1)
        await started.wait()
        leaving = asyncio.create_task(provider.unsubscribe("asked"))
        await until(lambda: not provider.queues, "the handler is taken back")
        await provider.subscribe("asked", lambda n: "new")
        assert await provider.emit("asked", 2) == "new"
        go.set()
        assert await first == "old"
        await leaving
        assert worker.queues == ["event.asked"]
        assert await provider.emit("asked", 3) == "new"


def test_a_collection_that_was_refused_may_grow_and_be_included_then(make_provider: MakeProvider) -> None:
    handlers, provider = Handlers(), make_provider()
    handlers.on("placed", pool="mine")(print)
    with pytest.raises(DefinitionError, match="declare a pool"):
        provider.include(handlers)
    handlers.on("paid")(print)
    provider.pool("mine", threads=1)
    provider.include(handlers)
    assert provider.queues == ["event.placed", "event.paid"]
    with pytest.raises(DefinitionError, match="has included this collection"):
        handlers.on("sent")(print)
