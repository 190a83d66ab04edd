"""One worker and several: fairness, limits, wakes, stopping, and what a job costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog

from eventbus import EventContext, EventProvider
from eventbus.engine.executor import Executor
from eventbus.store.connection.connector import Connector
from eventbus.store.embedded.server import EmbeddedServer

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Admin = Callable[..., Any]


async def _enqueue(provider: EventProvider, event: str, count: int) -> list[Any]:
    emissions = provider.emit_many(event, range(count), reply_timeout=None)
    for each in emissions[-200:]:
        await each.enqueued()
    return emissions


@pytest.mark.real
async def test_a_hot_queue_starves_none_of_two_hundred(make_provider: MakeProvider) -> None:
    provider = make_provider(max_concurrency=10)
    started: list[str] = []

    async def run(_: Any, ctx: EventContext) -> None:
        started.append(ctx.event)
        await asyncio.sleep(0)

    for n in range(200):
        provider.on(f"e{n}")(run)
    async with provider:
        emissions = await _enqueue(provider, "e0", 1000)
        for n in range(1, 200):
            emissions += await _enqueue(provider, f"e{n}", 1)
        async with provider.worker():
            for each in emissions:
                await each
    last = max(place for place, event in enumerate(started) if event != "e0")
    assert len(started) == 1199
    assert last < 700, f"the last of the others started as number {last}"


async def test_the_limits_of_handlers_and_of_the_process_hold(make_provider: MakeProvider) -> None:
    provider = make_provider(max_concurrency=8)
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def run(_: Any, ctx: EventContext) -> None:
        for name in (ctx.event, "all"):
            running[name] += 1
            most[name] = max(most[name], running[name])
        await asyncio.sleep(0.005)  # the handler's work, longer than a claim takes
        for name in (ctx.event, "all"):
            running[name] -= 1

    provider.on("one", concurrency=1)(run)
    provider.on("five", concurrency=5)(run)
    provider.on("many", concurrency=100)(run)
    async with provider:
        emissions = [each for name in ("one", "five", "many") for each in await _enqueue(provider, name, 60)]
        async with provider.worker():
            for each in emissions:
                await each
    assert most["one"] == 1
    assert 1 < most["five"] <= 5 < most["all"] <= 8


@pytest.mark.usefixtures("wakes_only")
async def test_a_handler_at_its_limit_leaves_the_next_job_to_another_worker(
    make_provider: MakeProvider, stack: AsyncExitStack, until: Until
) -> None:
    go = asyncio.Event()
    at: list[str] = []
    providers = [make_provider(name=f"w{n}") for n in range(2)]
    for each in providers:

        async def run(n: int, name: str = each.settings.name) -> str:
            at.append(name)
            await go.wait()
            return name

        each.on("ask", concurrency=1)(run)
        await stack.enter_async_context(each.worker())
    emissions: list[Any] = []
    for n in range(2):
        emissions.append(providers[0].emit("ask", n))
        await until(lambda n=n: len(at) > n, "a worker with a free slot has it")
    assert sorted(at) == ["w0", "w1"]
    emissions.append(providers[0].emit("ask", 3))
    go.set()
    assert {await each for each in emissions} == {"w0", "w1"}


@pytest.mark.usefixtures("wakes_only")
async def test_workers_of_different_queues_are_woken_too(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    first, second = make_provider(), make_provider()
    for name in ("a", "both"):
        first.on(name)(lambda n: n)
    for name in ("b", "both"):
        second.on(name)(lambda n: n)
    emitter = await stack.enter_async_context(make_provider())
    await stack.enter_async_context(first.worker())
    await stack.enter_async_context(second.worker())
    for n in range(5):
        for name in ("a", "b", "both"):
            assert await emitter.emit(name, n) == n


@pytest.mark.usefixtures("wakes_only")
async def test_subscribe_returns_when_an_emit_is_served_at_once(make_provider: MakeProvider) -> None:
    provider, emitter = make_provider(), make_provider()
    async with provider, emitter:
        for n in range(5):
            await provider.subscribe(f"e{n}", lambda given, n=n: [n, given])
            assert await emitter.emit(f"e{n}", "x") == [n, "x"]
        assert await emitter.emit("e0", "y") == [0, "y"]


@pytest.mark.usefixtures("wakes_only")
async def test_a_delayed_job_starts_when_it_is_due_though_its_worker_is_idle(
    make_provider: MakeProvider,
) -> None:
    provider, emitter = make_provider(), make_provider()
    provider.on("ask")(lambda n: n)
    async with provider.worker(), emitter:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        late, soon = emitter.emit("ask", 1, delay="120ms"), emitter.emit("ask", 2, delay="40ms")
        assert await soon == 2
        assert loop.time() - begin > 0.035
        assert await late == 1
        assert loop.time() - begin > 0.115


async def test_a_stop_gives_unfinished_jobs_back_in_their_order_and_no_attempt_is_spent(
    make_provider: MakeProvider, until: Until
) -> None:
    first, second = make_provider(grace=0.05), make_provider()
    began: list[int] = []
    ran: list[tuple[int, int]] = []

    @first.on("ask", concurrency=3)
    async def hang(n: int) -> None:
        began.append(n)
        await asyncio.Event().wait()

    @second.on("ask", concurrency=1)
    async def run(n: int, ctx: EventContext) -> int:
        ran.append((n, ctx.attempt))
        return n

    async with second:
        async with first.worker():
            emissions = await _enqueue(first, "ask", 6)
            ids = [each.job_id for each in emissions]
            await until(lambda: len(began) == 3, "the first three run")
        async with second.worker():
            assert [await second.result(each) for each in ids] == list(range(6))
    assert ran == [(n, 1) for n in range(6)]


@pytest.mark.usefixtures("wakes_only")
async def test_a_worker_that_stops_wakes_another_for_what_it_leaves(
    make_provider: MakeProvider, until: Until
) -> None:
    first, second = make_provider(grace=0), make_provider()
    began: list[int] = []

    @first.on("ask", concurrency=1)
    async def hang(n: int) -> None:
        began.append(n)
        await asyncio.Event().wait()

    second.on("ask", concurrency=1)(lambda n: n)
    async with make_provider() as emitter, first.worker():
        emissions = await _enqueue(emitter, "ask", 5)
        await until(lambda: began, "the first worker has work")
        async with second.worker():
            # Both serve it; the stop of the first must not leave the second asleep.
            for each in emissions[1:]:
                await each
            await first.stop()
            assert await emissions[0] == 0


async def test_a_worker_that_stops_wakes_another_that_learns_when_a_job_is_due(
    make_provider: MakeProvider, admin: Admin, prefix: str, until: Until
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with make_provider() as emitter:
        async with provider.worker():
            await emitter.emit("ask", 1)
            await emitter.emit("ask", 2, delay="1 hour", reply=False).enqueued()
            await until(lambda: not admin("KEYS", f"{prefix}:*:wake:*"), "the worker knows the time")
        (wakes,) = admin("KEYS", f"{prefix}:*:wake:*")
        assert admin("ZRANGE", wakes, 0, -1) == ["event.ask"]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("scripting", "forgotten"), [("eval", "SCRIPT"), ("functions", "FUNCTION")])
async def test_scripts_that_the_server_forgot_are_loaded_again_under_load(
    make_provider: MakeProvider, admin: Admin, until: Until, scripting: str, forgotten: str
) -> None:
    provider = make_provider(scripting=scripting)
    ran: list[int] = []

    @provider.on("ask")
    async def ask(n: int) -> int:
        ran.append(n)
        return n

    async with provider.worker():
        emissions = provider.emit_many("ask", range(2000))
        for count in (1, 300, 900, 1500):
            await until(lambda count=count: len(ran) >= count, "some have run")
            admin(forgotten, "FLUSH")
        assert [await each for each in emissions] == list(range(2000))
    assert sorted(ran) == list(range(2000))


async def test_a_job_costs_one_task_and_nothing_that_it_does_not_use(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider(concurrency=100)
    counts: Counter[str] = Counter()

    @provider.on("noop")
    async def noop(n: int) -> int:
        return n

    def count(target: Any, name: str, what: str) -> None:
        original = getattr(target, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            counts[what] += 1
            if what == "tasks" and _runs_a_job(arguments[0]):
                counts["jobs"] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(target, name, counted)

    async with provider.worker():
        assert await provider.emit("noop", 1, reply_timeout=None) == 1
        loop = asyncio.get_running_loop()
        count(loop, "create_task", "tasks")
        for name in ("call_later", "call_at"):
            count(loop, name, "timers")
        count(structlog, "get_logger", "loggers")
        count(structlog.BoundLoggerBase, "bind", "binds")
        for name in ("start_span", "start_as_current_span"):
            count(__import__("opentelemetry.trace").trace.NoOpTracer, name, "spans")
        emissions = provider.emit_many("noop", range(1000), reply_timeout=None)
        assert [await each for each in emissions] == list(range(1000))
        monkeypatch.undo()
    assert counts["jobs"] == 1000
    assert (counts["loggers"], counts["binds"], counts["spans"]) == (0, 0, 0)
    assert counts["tasks"] - counts["jobs"] <= 100, "tasks are made for batches, not for jobs"
    assert counts["timers"] <= 200, "timers are made for batches, not for jobs"


def _runs_a_job(work: Any) -> bool:
    return getattr(work, "cr_code", None) is Executor._run.__code__  # pyright: ignore[reportPrivateUsage]


@pytest.mark.real
@pytest.mark.slow
async def test_an_idle_worker_sends_two_commands_a_second_at_most() -> None:
    server = EmbeddedServer(None)
    url = f"unix://{await asyncio.to_thread(server.start)}"
    try:
        provider = EventProvider(url)
        for n in range(20):
            provider.on(f"e{n}")(lambda n: n)
        async with provider.worker():
            assert await provider.emit("e0", 1) == 1
            commands = await asyncio.to_thread(_watch, url, 4.5)
    finally:
        await asyncio.to_thread(server.stop)
    assert len(commands) <= 9, commands


def _watch(url: str, seconds: float) -> list[str]:
    """The commands that clients send in that time, without those that scripts make."""
    import time

    connection: Any = Connector(url).open_blocking(name="watch", timeout=0.2)
    seen: list[str] = []
    try:
        connection.send_command("MONITOR")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if connection.can_read(timeout=0.1):
                line = connection.read_response()
                if line != "OK" and " lua]" not in line:
                    seen.append(line[:100])
    finally:
        connection.disconnect()
    return seen
