"""Lifespans: what the handlers of a worker share, and when it is entered and left."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from eventbus import DefinitionError, EventContext, EventProvider, ProviderStopped, SyncContext, UsageError

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Pool:
    """What a lifespan may make."""

    def __init__(self, size: int) -> None:
        self.size = size


async def test_handlers_share_what_it_yields(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.lifespan
    async def pool() -> AsyncIterator[Pool]:
        yield Pool(5)

    @provider.lifespan
    @asynccontextmanager
    async def name(given: EventProvider) -> AsyncGenerator[str]:
        assert given is provider
        yield "shared"

    @provider.on("in-loop")
    async def in_loop(payload: Any, ctx: EventContext) -> list[Any]:
        return [ctx.shared(pool).size, ctx.shared(name)]

    @provider.on("in-thread")
    def in_thread(payload: Any, ctx: SyncContext) -> list[Any]:
        return [ctx.shared(pool).size, ctx.shared(name)]

    async with provider, provider.worker():
        assert await provider.emit("in-loop") == [5, "shared"]
        assert await provider.emit("in-thread") == [5, "shared"]


async def test_a_context_shares_nothing_after_the_end_of_its_worker_or_in_a_fork(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    kept: list[EventContext] = []

    @provider.lifespan
    async def pool() -> AsyncIterator[Pool]:
        yield Pool(5)

    @provider.on("in-loop")
    async def in_loop(payload: Any, ctx: EventContext) -> None:
        kept.append(ctx)

    async with provider, provider.worker():
        await provider.emit("in-loop")
        assert kept[0].shared(pool).size == 5
        reads, writes = os.pipe()
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                os.write(writes, _told(kept[0], pool).encode())
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert os.read(reads, 1000).decode() == _NOTHING
        os.close(reads)
        os.close(writes)
    for _ in range(2):
        assert _told(kept[0], pool) == _NOTHING
        async with provider, provider.worker():  # another worker has values of its own
            assert _told(kept[0], pool) == _NOTHING


_NOTHING = "nothing is shared here: no worker of this provider runs in this process"


def _told(ctx: EventContext, lifespan: Any) -> str:
    try:
        return repr(ctx.shared(lifespan))
    except UsageError as error:
        return str(error)


async def test_they_nest_in_order_around_all_jobs_and_only_workers_enter_them(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    told: list[str] = []
    started = asyncio.Event()

    @provider.lifespan
    async def outer() -> AsyncIterator[None]:
        told.append("outer in")
        yield
        told.append("outer out")

    @provider.lifespan
    async def inner() -> AsyncIterator[None]:
        told.append("inner in")
        yield
        assert await provider.emit("other", reply=False) is None  # the emitter outlives the worker
        told.append("inner out")

    @provider.on("ask")
    async def handler(payload: Any, ctx: EventContext) -> None:
        started.set()
        await asyncio.sleep(0.05)
        ctx.shared(inner)  # also while the worker drains
        await ctx.progress(100)
        told.append("handled")

    async with provider:
        assert told == []
        emission = provider.emit("ask")
        for _ in range(2):
            async with provider.worker():
                await asyncio.wait_for(started.wait(), 240)
    await asyncio.sleep(0)
    life = ["outer in", "inner in", "handled", "inner out", "outer out"]
    assert told == life + [each for each in life if each != "handled"]
    assert emission.done()


async def test_what_it_raises_is_raised_by_the_start_and_nothing_is_left_of_it(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    told: list[str] = []
    is_broken = True

    @provider.lifespan
    async def outer() -> AsyncIterator[None]:
        try:
            yield
        finally:
            told.append("left")

    @provider.lifespan
    async def breaking() -> AsyncIterator[None]:
        if is_broken:
            raise ConnectionRefusedError("no database")
        yield

    async with provider:
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError, match="no database"):
                async with provider.worker():
                    raise AssertionError("it started")
        assert told == ["left"] * 2
        is_broken = False
        async with provider.worker():
            assert await provider.emit("ask", 5) == 5


async def test_subscribe_enters_them_too(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.lifespan
    async def number() -> AsyncIterator[int]:
        yield 7

    async def handler(payload: Any, ctx: EventContext) -> int:
        return ctx.shared(number)

    async with provider:
        await provider.subscribe("ask", handler)
        assert await provider.emit("ask") == 7


async def test_it_may_hold_a_task_group_for_it_is_entered_and_left_in_one_task(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)

    @provider.lifespan
    async def background() -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as group, asyncio.timeout(None):
            forever = group.create_task(asyncio.Event().wait())
            yield group
            forever.cancel()

    async with provider, provider.worker():
        assert await provider.emit("ask", 1) == 1


async def test_a_stop_while_one_is_entered_ends_the_start(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    entering, left = asyncio.Event(), asyncio.Event()

    @provider.lifespan
    async def endless() -> AsyncIterator[None]:
        entering.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            left.set()

    async def work() -> None:
        async with provider.worker():
            raise AssertionError("it started")

    async with provider:
        task = asyncio.create_task(work())
        await entering.wait()
        await provider.stop()
        with pytest.raises(ProviderStopped, match="the worker was stopped before it was ready"):
            await task
        assert left.is_set()


async def test_one_that_takes_too_long_to_leave_is_cancelled_and_the_log_says_so(
    make_provider: MakeProvider, logs: list[Any]
) -> None:
    provider = make_provider(grace=0.05)
    provider.on("ask")(lambda n: n)
    leaving, left = asyncio.Event(), asyncio.Event()

    @provider.lifespan
    async def endless() -> AsyncIterator[None]:
        yield
        leaving.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async with provider:
        async with provider.worker() as runner:
            runner.request_stop()
            await leaving.wait()
            runner.request_stop(at_once=True)
        assert left.is_set()
    errors = [each for each in logs if each["log_level"] == "error"]
    assert [(each["event"], each["lifespan"].split(".")[-1]) for each in errors] == [
        ("lifespan takes too long, cancelled", "endless")
    ]


async def test_what_is_no_lifespan_is_refused(make_provider: MakeProvider) -> None:
    provider: Any = make_provider()

    async def no_generator() -> None: ...
    async def greedy(one: Any, two: Any) -> AsyncIterator[None]:
        yield

    for wrong in (no_generator, greedy, None, 5):
        with pytest.raises(DefinitionError, match="expected a lifespan to be an async function that yields"):
            provider.lifespan(wrong)

    @provider.lifespan
    def late() -> AbstractAsyncContextManager[None]:
        return object()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    provider.on("ask")(lambda n: n)
    async with provider:
        with pytest.raises(DefinitionError, match="to make an async context manager, got: <object"):
            async with provider.worker():
                raise AssertionError("it started")


async def test_asking_for_one_that_was_not_entered_says_so(make_provider: MakeProvider) -> None:
    provider: Any = make_provider(retry=1)

    async def pool() -> AsyncIterator[int]:
        yield 1

    @provider.on("ask")
    async def handler(payload: Any, ctx: EventContext) -> str:
        with pytest.raises(UsageError, match=r"pool.* is no lifespan of this worker; .* there are: none"):
            ctx.shared(pool)
        return "refused"

    with pytest.raises(UsageError, match="no worker of this provider runs"):
        provider.jobs.shared(pool)
    async with provider, provider.worker():
        assert await provider.emit("ask") == "refused"


class Entering:
    """A worker whose first lifespan takes a while to leave, and whose second is never entered."""

    def __init__(self, provider: EventProvider, seconds: float) -> None:
        self.is_reached = asyncio.Event()
        self.is_left = False
        self._seconds = seconds
        provider.on("ask")(lambda n: n)
        provider.lifespan(self._slow_to_leave)
        provider.lifespan(self._slow_to_enter)

    async def _slow_to_leave(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.sleep(self._seconds)  # what it takes to close something
            self.is_left = True

    async def _slow_to_enter(self) -> AsyncIterator[None]:
        self.is_reached.set()
        await asyncio.Event().wait()
        yield


async def _start(provider: EventProvider, entering: Entering) -> asyncio.Task[Any]:
    await provider.start()
    starting = asyncio.create_task(provider.worker().__aenter__())
    await entering.is_reached.wait()
    return starting


async def test_a_second_stop_does_not_cut_short_how_the_first_leaves_them(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    entering = Entering(provider, 0.2)
    starting = await _start(provider, entering)
    first = asyncio.create_task(provider.stop())
    await asyncio.sleep(0.05)  # by then it leaves
    await asyncio.gather(first, provider.stop())
    with pytest.raises(ProviderStopped):
        await starting
    assert entering.is_left


async def test_a_stop_while_one_is_entered_has_an_end_as_any_other(make_provider: MakeProvider) -> None:
    provider = make_provider(grace=0.1)
    entering = Entering(provider, 600)
    starting = await _start(provider, entering)
    await asyncio.wait_for(provider.stop(), 240)
    with pytest.raises((ProviderStopped, TimeoutError)):
        await starting
    assert not entering.is_left


async def test_a_start_that_is_given_up_leaves_no_task(make_provider: MakeProvider) -> None:
    provider = make_provider()
    before = len(asyncio.all_tasks())
    starting = await _start(provider, Entering(provider, 0))
    starting.cancel()
    await asyncio.wait([starting])
    await provider.stop()
    assert len(asyncio.all_tasks()) == before
