"""`provider.watch`: what happens to jobs, over the wire, from a position on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from drivers.servers import Server

from eventbus import (
    Change,
    DefinitionError,
    Event,
    EventContext,
    EventProvider,
    ProviderStopped,
    StoreRefused,
    Watch,
)
from workflows import StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

DOUBLED = Event("doubled", payload=int, result=int)


async def _take(watch: Watch, count: int, *, within: float = 60) -> list[Change]:
    """Return so many further changes."""
    async with asyncio.timeout(within):
        return [await anext(watch) for _ in range(count)]


def _shown(changes: list[Change]) -> list[str]:
    return [each.what for each in changes]


@pytest.fixture
async def worker(make_provider: MakeProvider) -> AsyncIterator[EventProvider]:
    """Serves DOUBLED."""
    provider = make_provider()

    @provider.on(DOUBLED)
    async def double(n: int, ctx: EventContext) -> int:
        if n < 0:
            raise ValueError("less than nothing")
        await ctx.progress(n)
        return 2 * n

    async with provider.worker():
        yield provider


async def test_the_life_of_a_job_is_seen_in_another_process(
    make_provider: MakeProvider, worker: EventProvider
) -> None:
    async with make_provider() as other, other.watch(DOUBLED) as watch:
        emission = worker.emit(DOUBLED, 4)
        assert await emission == 8
        changes = await _take(watch, 5)
        assert sorted(_shown(changes)) == ["added", "claimed", "completed", "drained", "progress"]
        assert {each.job_id for each in changes if each.what != "drained"} == {emission.job_id}
        assert {each.queue for each in changes} == {"event.doubled"}
        assert [int(b.position) - int(a.position) for a, b in pairwise(changes)] == [1] * 4
        assert watch.position == changes[-1].position


async def test_a_failure_is_seen_with_its_error(worker: EventProvider) -> None:
    async with worker.watch("doubled") as watch:
        with pytest.raises(Exception, match="less than nothing"):
            await worker.emit(DOUBLED, -1, retry=None)
        found = await _take(watch, 3)
        while found[-1].what != "failed":
            found += await _take(watch, 1)
        assert found[-1].note == "ValueError: less than nothing"
        assert found[-1].state == "failed"


async def test_progress_that_looks_like_an_error_is_told_as_it_is(make_provider: MakeProvider) -> None:
    provider = make_provider()
    heard: list[str] = []
    progress = {"type": "upload", "message": "half", "rest": "x" * 300}

    @provider.on("told")
    async def tell(_: None, ctx: EventContext) -> None:
        await ctx.progress(progress)

    @provider.watching("progress")
    def hear(change: Change) -> None:
        heard.append(change.note)

    async with provider.worker(), provider.watch("told") as watch:
        await provider.emit("told")
        found = await _take(watch, 3)
        while found[-1].what != "progress":
            found += await _take(watch, 1)
    text = '{"type":"upload","message":"half","rest":"' + "x" * 300
    assert [found[-1].note, *heard] == [text[:200]] * 2


async def test_a_plain_loop_is_enough_and_leaving_it_ends_the_watch(
    worker: EventProvider, until: Until
) -> None:
    seen: list[str] = []
    watch = worker.watch(DOUBLED)

    async def look() -> None:
        async for change in watch:
            seen.append(change.what)
            if change.what == "completed":
                break

    task = asyncio.create_task(look())
    await until(lambda: watch.position, "the watch begins")
    await worker.emit(DOUBLED, 1)
    async with asyncio.timeout(240):
        await task
    assert seen[0] == "added"
    assert seen[-1] == "completed"


async def test_who_comes_back_goes_on_behind_what_he_saw(worker: EventProvider) -> None:
    async with worker.watch(DOUBLED) as watch:
        await worker.emit(DOUBLED, 1)
        changes = await _take(watch, 5)
        for n in range(3):
            await worker.emit(DOUBLED, n)
        rest = await _take(watch, 15)
    async with worker.watch(DOUBLED, since=changes[1].position) as again:
        assert await _take(again, 18) == [*changes[2:], *rest]


async def test_a_group_or_a_queue_is_watched_alone(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on(DOUBLED)
    async def double(n: int) -> int:
        return 2 * n

    @provider.on(DOUBLED, group="audit")
    async def audit(n: int) -> None: ...

    async with (
        provider.worker(),
        provider.watch(DOUBLED, group="audit") as group,
        provider.watch("event.doubled@audit") as queue,
        provider.watch(DOUBLED, group="default") as default,
        provider.watch() as everything,
    ):
        await provider.emit(DOUBLED, 1)
        assert {each.queue for each in await _take(group, 4)} == {"event.doubled@audit"}
        assert {each.queue for each in await _take(queue, 4)} == {"event.doubled@audit"}
        assert {each.queue for each in await _take(default, 4)} == {"event.doubled"}
        assert {each.queue for each in await _take(everything, 8)} == {"event.doubled", "event.doubled@audit"}


async def test_a_pause_is_seen_by_who_watches_the_event(worker: EventProvider) -> None:
    async with worker.watch(DOUBLED) as watch:
        await worker.pause(DOUBLED, reason="the bank is down")
        await worker.resume(DOUBLED)
        paused, resumed = await _take(watch, 2)
        assert (paused.what, paused.note, paused.job_id) == ("paused", "the bank is down", "")
        assert resumed.what == "resumed"


async def test_a_stop_of_the_provider_ends_its_watches(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    await provider.start()
    watch = provider.watch()
    waits = asyncio.create_task(_take(watch, 1))
    await until(lambda: watch.position, "the watch begins")
    await provider.stop()
    with pytest.raises(ProviderStopped, match="the watch has ended"):
        await waits
    with pytest.raises(ProviderStopped):
        await anext(watch)


async def test_a_watch_needs_a_started_provider(make_provider: MakeProvider) -> None:
    with pytest.raises(ProviderStopped):
        await anext(make_provider().watch())


@pytest.mark.parametrize("since", ["", "x", "-1", "1.5", "9" * 40, 7])
async def test_a_position_that_is_none_is_refused(make_provider: MakeProvider, since: Any) -> None:
    with pytest.raises(DefinitionError, match="position of a change"):
        make_provider().watch(since=since)


async def test_a_group_without_an_event_is_refused(make_provider: MakeProvider) -> None:
    with pytest.raises(DefinitionError, match="needs an event"):
        make_provider().watch(group="audit")


async def test_unwatched_jobs_write_no_changes(
    worker: EventProvider, admin: Callable[..., Any], prefix: str
) -> None:
    await worker.emit(DOUBLED, 1)
    assert [each for each in admin("KEYS", f"{prefix}*") if each.endswith(("changes", "watched"))] == []


async def test_a_watch_of_a_killed_process_costs_nothing_after_its_time(
    worker: EventProvider, admin: Callable[..., Any], prefix: str, until: Until
) -> None:
    root = f"{prefix}:2:{{0}}"
    async with worker.watch(DOUBLED) as watch:
        assert watch._renewals is not None  # type: ignore[attr-defined]
        watch._renewals.cancel()  # as a kill does
        await asyncio.wait([watch._renewals])
        assert 25_000 < admin("PTTL", f"{root}:watched") <= 30_000
        admin("PEXPIRE", f"{root}:watched", 1)
        await until(lambda: not admin("EXISTS", f"{root}:watched"), "the time of the watch is over")
        length = admin("XLEN", f"{root}:changes")
        await worker.emit(DOUBLED, 1)
        assert admin("XLEN", f"{root}:changes") == length
        assert admin("HGET", f"{root}:queues", "*")[1] == "\0"


async def test_a_slow_user_keeps_the_watch(
    worker: EventProvider,
    monkeypatch: pytest.MonkeyPatch,
    admin: Callable[..., Any],
    prefix: str,
    until: Until,
) -> None:
    monkeypatch.setattr("eventbus.admin.watch._BEAT", 0.01)
    root = f"{prefix}:2:{{0}}"
    async with worker.watch(DOUBLED):
        admin("PEXPIRE", f"{root}:watched", 5000)
        await until(lambda: admin("PTTL", f"{root}:watched") > 20_000, "it is renewed while nobody reads")


async def test_a_renewal_that_is_refused_ends_the_watch_with_the_reason(
    worker: EventProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise StoreRefused("NOPERM no right", code="NOPERM")

    monkeypatch.setattr("eventbus.admin.watch._BEAT", 0.01)
    watch = worker.watch(DOUBLED)
    async with watch:
        monkeypatch.setattr(watch._stream, "renew", refuse)
        with pytest.raises(StoreRefused, match="NOPERM"):
            await _take(watch, 1)
    with pytest.raises(ProviderStopped):
        await _take(watch, 1)


@pytest.mark.real
async def test_a_restart_of_the_server_is_outlived_from_the_position_on() -> None:
    server = Server("--appendonly", "yes", "--appendfsync", "always")
    server.start()
    try:
        async with EventProvider(server.url) as provider, provider.watch() as watch:
            await provider.emit("a", 1, reply=False).enqueued()
            first = await _take(watch, 1)
            waits = asyncio.create_task(_take(watch, 1))
            server.restart()
            await provider.emit("b", 2, reply=False).enqueued()
            assert [each.queue for each in first + await waits] == ["event.a", "event.b"]
    finally:
        server.stop()


@pytest.mark.real
async def test_a_restart_that_lost_the_data_is_told_as_a_gap() -> None:
    server = Server()
    server.start()
    try:
        async with EventProvider(server.url) as provider, provider.watch() as watch:
            await provider.emit("a", 1, reply=False).enqueued()
            await _take(watch, 1)
            waits = asyncio.create_task(_take(watch, 2))
            server.restart()
            while not waits.done():
                await provider.emit("b", 2, reply=False).enqueued()
            assert _shown(await waits) == ["missed", "added"]
    finally:
        server.stop()


async def test_a_flow_and_its_steps_are_watched_by_their_queues(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows, order = WorkflowProvider(provider), Workflow("order", input=int, output=int)

    @order.step(spread=True)
    async def bill(ctx: StepContext[int]) -> int:
        return ctx.input + 1

    @order.completed
    async def tell(ctx: StepContext[int]) -> int:
        return ctx.result(bill)

    flows.register(order)
    async with provider.worker(), provider.watch("workflow.order") as watch, provider.watch() as everything:
        flow = await flows.execute(order, 1)
        assert await flow.result(240) == 2
        seen = await _take(watch, 1)
        while seen[-1].what != "completed":
            seen += await _take(watch, 1)
        assert seen[0].what == "added"
        assert {each.job_id for each in seen if each.job_id} == {flow.id}
        assert {each.queue for each in seen} == {"workflow.order"}
        every = await _take(everything, len(seen))
        assert {each.queue for each in every} <= {"workflow.order", "workflow.order.steps"}


@pytest.mark.parametrize("last", ["nan", "\xff", "1" * 30, "-5", ""])
async def test_a_damaged_number_of_the_last_change_holds_up_no_job_and_is_made_anew(
    worker: EventProvider, admin: Callable[..., Any], prefix: str, last: str
) -> None:
    async with worker.watch(DOUBLED) as watch:
        position = watch.position
        admin("HSET", f"{prefix}:2:{{0}}:watched", "#", last)
        assert await worker.emit(DOUBLED, 4) == 8
    async with worker.watch(DOUBLED, since=position) as watch:
        assert await worker.emit(DOUBLED, 5) == 10
        assert sorted(_shown(await _take(watch, 6)))[1:] == [
            "claimed",
            "completed",
            "drained",
            "missed",
            "progress",
        ]
