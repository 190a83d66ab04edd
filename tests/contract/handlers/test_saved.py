"""What a job saves for its next run, and how a handler hears that it should end early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from eventbus import (
    EventContext,
    EventProvider,
    HandlerError,
    JobCancelled,
    Later,
    PayloadError,
    Retry,
    StoreRefused,
    SyncContext,
    UnknownJob,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Cursor(msgspec.Struct):
    page: int
    seen: list[str] = []


async def test_a_saved_value_is_there_in_the_runs_after_it(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(2, delay=0))
    found: list[Any] = []

    @provider.on("crawl")
    async def crawl(_: None, ctx: EventContext) -> list[str]:
        cursor = await ctx.saved(Cursor, default=Cursor(0))
        found.append(cursor.page)
        await ctx.save(Cursor(cursor.page + 1, [*cursor.seen, f"p{cursor.page}"]))
        match cursor.page:
            case 0:
                raise Later(0)
            case 1:
                raise ValueError("an attempt that fails")
            case _:
                now = await ctx.saved(Cursor)
                assert now is not None
                return now.seen

    async with provider.worker():
        emission = provider.emit("crawl")
        assert await emission == ["p0", "p1", "p2"]
        assert found == [0, 1, 2]
        assert await provider.emit("crawl") == ["p0", "p1", "p2"], "each job has its own"


async def test_a_thread_saves_too(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("count")
    def count(_: None, ctx: SyncContext) -> int:
        done = ctx.saved(int, default=0)
        ctx.save(done + 1)
        if done < 2:
            raise Later(0)
        return ctx.saved(int, default=0)

    async with provider.worker():
        assert await provider.emit("count") == 3


async def test_it_stays_when_the_worker_stops_and_gives_the_job_back(
    make_provider: MakeProvider, until: Until
) -> None:
    first, second = make_provider(grace="50ms"), make_provider()
    saved = asyncio.Event()

    async def walk(_: None, ctx: EventContext) -> str:
        if await ctx.saved(str) is None:
            await ctx.save("half way")
            saved.set()
            await asyncio.Event().wait()
        return await ctx.saved(str, default="nothing")

    first.on("walk")(walk)
    second.on("walk")(walk)
    async with second:
        async with first.worker():
            emission = second.emit("walk")
            await saved.wait()
        async with second.worker():
            assert await emission == "half way"


async def test_what_was_saved_goes_with_the_job(make_provider: MakeProvider) -> None:
    provider = make_provider(keep_completed=0)

    @provider.on("save")
    async def save(n: int, ctx: EventContext) -> int:
        await ctx.save({"n": n})
        return n

    async with provider.worker():
        emission = provider.emit("save", 1, reply=False)
        await emission.enqueued()
        async with asyncio.timeout(240):
            while not await _is_gone(provider, emission.job_id):
                await asyncio.sleep(0.1)
                await provider.emit("save", 2)  # retention looks at the end of others
        assert await provider.jobs.live(emission.job_id, "saved") is None


async def test_a_value_that_is_too_large_or_none_of_json_is_refused_with_its_size(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(max_result=100)
    errors: list[str] = []

    @provider.on("save")
    async def save(_: None, ctx: EventContext) -> None:
        for value in ("x" * 200, float("nan"), [Cursor(1)], range(3), print):
            with pytest.raises(PayloadError) as caught:
                await ctx.save(value)
            errors.append(str(caught.value))
        await ctx.save(5)
        with pytest.raises(PayloadError, match="saved value"):
            await ctx.saved(str)

    async with provider.worker():
        await provider.emit("save")
    assert 'saved value of "save"' in errors[0]
    assert "expected at most 100 bytes, got: 202 bytes" in errors[0]
    assert "one of a type that msgspec or pydantic converts, got: range" in errors[3]


async def test_a_worker_that_lost_the_job_saves_nothing(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider(lease="10s")
    began, go = asyncio.Event(), asyncio.Event()
    raised: list[BaseException] = []

    @provider.on("save")
    async def save(_: None, ctx: EventContext) -> str:
        if await ctx.saved(str) is not None:
            return "again"
        await ctx.save("mine")
        began.set()
        try:
            await go.wait()
            await ctx.save("stale")
        except BaseException as error:
            raised.append(error)
            raised.append(RuntimeError(ctx.stopping))
            raise
        return "first"

    async with provider.worker() as worker:
        emission = provider.emit("save")
        await began.wait()
        store = provider._life.store  # pyright: ignore[reportPrivateUsage]
        assert store is not None
        await store._caller.command("HDEL", store.keys.of("held", worker.id), emission.job_id)
        go.set()
        await until(lambda: len(raised) == 2, "the save was answered")
        assert isinstance(raised[0], StoreRefused)
        assert "its lease is lost or its attempt has ended" in str(raised[0])
        assert str(raised[1]) == "lease lost"
        assert await provider.jobs.live(emission.job_id, "saved") == '"mine"'


@pytest.mark.real
@pytest.mark.parametrize("reason", ["cancel", "timeout", "stop"])
async def test_a_thread_hears_why_it_should_end(
    make_provider: MakeProvider, until: Until, reason: str
) -> None:
    provider = make_provider(grace="5s", retry=Retry(1))
    heard: list[Any] = []
    began = threading.Event()

    @provider.on("grind", timeout="100ms" if reason == "timeout" else None)
    def grind(_: None, ctx: SyncContext) -> str:
        heard.append(ctx.stopping)
        began.set()
        end = threading.Event()
        while not ctx.stopping:
            end.wait(0.005)
        heard.append(ctx.stopping)
        return "ended early"

    async with provider:
        async with provider.worker():
            emission = provider.emit("grind")
            await until(began.is_set, "the thread runs")
            if reason == "cancel":
                await emission.cancel("enough")
            if reason != "stop":
                with pytest.raises(JobCancelled if reason == "cancel" else HandlerError):
                    await emission
                await until(lambda: len(heard) == 2, "the thread has heard of it")
        assert heard == [None, reason]
        if reason == "stop":
            assert await emission == "ended early", "it had the grace to end"


async def test_an_async_handler_hears_of_a_stop_while_it_has_the_grace(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(grace="5s")
    heard: list[Any] = []

    @provider.on("page")
    async def page(_: None, ctx: EventContext) -> str:
        heard.append(ctx.stopping)
        while not ctx.stopping:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await ctx.save("page 7")
        return ctx.stopping

    async with provider:
        async with provider.worker():
            emission = provider.emit("page")
            await until(lambda: heard == [None], "it runs")
        assert await emission == "stop"


async def _is_gone(provider: EventProvider, job_id: str) -> bool:
    try:
        await provider.inspector.jobs.get(job_id)
    except UnknownJob:
        return True
    return False
