"""A stop while handlers run: which ones it waits for, which ones it does not, and what it logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from eventbus import EventContext, EventProvider, StoreUnavailable, SyncContext
from eventbus.engine import drain
from eventbus.store.calls.presence_store import PresenceStore
from workflows import StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[Any]

_GRACE = 3600.0
"""Seconds: a stop that ends has not waited for them."""
_STUCK = "handlers wait for jobs that only this worker would run, handed back without an attempt"
_UNFINISHED = "handlers did not finish, handed back without an attempt"


def _said(logs: Logs, event: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == event]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop says soon for whom it waits."""
    monkeypatch.setattr(drain, "_TELL_AFTER", 0.02)
    monkeypatch.setattr(drain, "_INTERVAL", 0.02)


@pytest.fixture
def make(make_provider: MakeProvider) -> MakeProvider:
    """Make providers with a grace that no test can wait for."""
    return lambda **settings: make_provider(**{"grace": _GRACE, **settings})


@pytest.mark.parametrize("waits_later", [False, True])
async def test_a_handler_that_awaits_what_only_its_own_worker_would_run_is_given_back_at_once(
    make: MakeProvider, logs: Logs, until: Until, waits_later: bool
) -> None:
    provider, emitter = make(), make()
    began, go = asyncio.Event(), asyncio.Event()
    attempts: list[tuple[int, int]] = []

    @provider.on("outer")
    async def outer(n: int, ctx: EventContext) -> int:
        attempts.append((n, ctx.attempt))
        began.set()
        await go.wait()
        return 1 + await ctx.emit("inner", n)

    provider.on("inner")(lambda n: 10 * n)
    async with emitter:
        async with provider.worker() as worker:
            emission = emitter.emit("outer", 2)
            await began.wait()
            worker.request_stop()
            if waits_later:
                await until(lambda: worker.health().draining, "it drains")
                asyncio.get_running_loop().call_later(0.8, go.set)  # when it has looked already
            else:
                await asyncio.sleep(0)
                go.set()
            await worker.wait()
        (line,) = _said(logs, _STUCK)
        assert line["log_level"] == "warning"
        assert (line["queues"], line["jobs"]) == ({"event.outer": 1}, [emission.job_id])
        assert line["wait_for"] == ["event.inner"]
        assert _said(logs, _UNFINISHED) == []
        async with provider.worker():
            assert await emission == 21
    assert attempts == [(2, 1), (2, 1)], "no attempt was spent"


@pytest.mark.real
async def test_a_handler_in_a_thread_is_given_back_as_well(make: MakeProvider, until: Until) -> None:
    provider, emitter = make(), make()
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    @provider.on("outer")
    def outer(n: int, ctx: SyncContext) -> int:
        loop.call_soon_threadsafe(began.set)
        return 1 + ctx.emit("inner", n, delay="100ms").result()

    provider.on("inner")(lambda n: 10 * n)
    async with emitter:
        async with provider, provider.worker() as worker:
            emission = emitter.emit("outer", 2)
            await began.wait()
            await until(provider._life.running("look").tracker.find_waits, "it awaits what it emitted")
            worker.request_stop()
            await worker.wait()
            await provider.stop()  # the thread sees that and ends
        async with provider.worker():
            assert await emission == 21


async def test_handlers_that_await_each_other_are_all_given_back(make: MakeProvider, until: Until) -> None:
    provider, emitter = make(), make()
    runs: list[str] = []

    def pass_on(to: str) -> Callable[..., Awaitable[Any]]:
        async def handler(n: int, ctx: EventContext) -> Any:
            runs.append(to)
            return await ctx.emit(to, n + 1, delay="50ms" if to == "c" else "0s")

        return handler

    provider.on("a")(pass_on("b"))
    provider.on("b")(pass_on("c"))
    provider.on("c")(lambda n: n)
    async with emitter:
        async with provider.worker() as worker:
            emission = emitter.emit("a", 0)
            await until(lambda: runs == ["b", "c"], "both run")
            worker.request_stop()
            await worker.wait()
        async with provider.worker():
            assert await emission == 2


async def test_workers_that_stop_at_once_do_not_wait_for_each_other(make: MakeProvider, until: Until) -> None:
    providers, emitter = [make() for _ in range(3)], make()
    began: list[int] = []

    async def outer(n: int, ctx: EventContext) -> int:
        began.append(n)
        await gone.wait()
        return await ctx.emit("inner", n)

    gone = asyncio.Event()
    async with emitter, AsyncExitStack() as stack:
        workers: list[Any] = []
        for provider in providers:
            provider.on("outer", concurrency=2)(outer)
            provider.on("inner")(lambda n: n)
            workers.append(await stack.enter_async_context(provider.worker()))
        emissions = emitter.emit_many("outer", range(6))
        await until(lambda: len(began) == 6, "all run")
        for worker in workers:
            worker.request_stop()
        gone.set()
        await asyncio.gather(*(worker.wait() for worker in workers))
        await stack.aclose()
        async with providers[0].worker():
            assert [await each for each in emissions] == list(range(6))


async def test_a_job_that_runs_under_another_worker_is_waited_for_though_that_one_drains_too(
    make: MakeProvider, logs: Logs
) -> None:
    provider, other, emitter = make(), make(), make()
    runs, go = asyncio.Event(), asyncio.Event()
    provider.on("outer")(_pass_on)

    @other.on("inner")
    async def inner(n: int) -> int:
        runs.set()
        await go.wait()
        return n

    async with emitter, provider.worker() as worker, other.worker() as second:
        emission = emitter.emit("outer", 5)
        await runs.wait()
        second.request_stop()
        worker.request_stop()
        asyncio.get_running_loop().call_later(1.2, go.set)  # after several looks
        assert await emission == 5
    assert _said(logs, _STUCK) + _said(logs, _UNFINISHED) == []


async def _pass_on(n: int, ctx: EventContext) -> Any:
    return await ctx.emit("inner", n)


async def test_a_job_that_runs_here_and_one_that_another_worker_serves_are_waited_for(
    make: MakeProvider, logs: Logs, stack: AsyncExitStack
) -> None:
    provider, other, emitter = make(), make(), make()
    runs, go, before = asyncio.Event(), asyncio.Event(), asyncio.Event()
    provider.on("outer")(_pass_on)

    @provider.on("inner")
    async def inner(n: int) -> int:
        runs.set()
        await go.wait()
        return n

    @provider.on("asks")
    async def asks(n: int, ctx: EventContext) -> Any:
        await before.wait()
        return await ctx.emit("elsewhere", n)

    other.on("elsewhere")(lambda n: -n)
    await stack.enter_async_context(other.worker())
    async with emitter, provider.worker() as worker:
        emissions = [emitter.emit("outer", 5), emitter.emit("asks", 6)]
        await runs.wait()
        worker.request_stop()
        await asyncio.sleep(0)
        before.set()
        assert await emissions[1] == -6
        asyncio.get_running_loop().call_later(1.2, go.set)
        assert await emissions[0] == 5
    assert _said(logs, _STUCK) + _said(logs, _UNFINISHED) == []


async def test_where_the_server_does_not_say_who_serves_a_handler_has_its_grace(
    make: MakeProvider, logs: Logs, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    asked: list[Any] = []

    async def refuse(self: PresenceStore, queues: Any, **given: Any) -> Any:
        asked.append(queues)
        raise StoreUnavailable("no answer in time")

    monkeypatch.setattr(PresenceStore, "survey", refuse)
    provider, emitter = make(grace=0.3), make()
    began = asyncio.Event()

    @provider.on("outer")
    async def outer(n: int, ctx: EventContext) -> Any:
        began.set()
        return await ctx.emit("inner", n, delay="1 hour")

    provider.on("inner")(lambda n: n)
    async with emitter:
        async with provider.worker() as worker:
            emission = emitter.emit("outer", 1)
            await began.wait()
            begin = asyncio.get_running_loop().time()
            worker.request_stop()
            await worker.wait()
            assert asyncio.get_running_loop().time() - begin >= 0.3
        assert asked[0] == ["event.inner"]
        (line,) = _said(logs, _UNFINISHED)
        assert (line["queues"], line["jobs"]) == ({"event.outer": 1}, [emission.job_id])


async def test_a_stop_says_for_whom_it_waits_and_whom_it_gave_back(
    make: MakeProvider, logs: Logs, until: Until, quick: None
) -> None:
    provider, emitter = make(grace=0.2), make()
    running: list[int] = []

    async def hang(n: int) -> None:
        running.append(n)
        await asyncio.Event().wait()

    provider.on("slow", concurrency=20)(hang)
    provider.on("other")(hang)
    async with emitter, provider.worker():
        emitter.emit_many("slow", range(12), reply=False)
        emitter.emit("other", 12, reply=False)
        await until(lambda: len(running) == 13, "all run")
    waiting, back = _said(logs, "waiting for handlers to finish"), _said(logs, _UNFINISHED)
    assert [line["log_level"] for line in waiting + back] == ["info", "warning"]
    assert waiting[0]["grace"] == 0.2
    for line in waiting + back:
        assert line["queues"] == {"event.slow": 12, "event.other": 1}
        assert len(set(line["jobs"])) == 10


async def test_a_second_signal_says_whom_it_gave_back(make: MakeProvider, logs: Logs, until: Until) -> None:
    provider, emitter = make(), make()
    began = asyncio.Event()

    @provider.on("slow")
    async def slow(n: int) -> None:
        began.set()
        await asyncio.Event().wait()

    async with emitter, provider.worker() as worker:
        emitter.emit("slow", 1, reply=False)
        await began.wait()
        worker.request_stop()
        await until(lambda: worker.health().draining, "it drains")
        worker.request_stop(at_once=True)
        await worker.wait()
    (line,) = _said(logs, _UNFINISHED)
    assert line["queues"] == {"event.slow": 1}


async def test_a_stop_whose_handlers_end_soon_says_nothing(make: MakeProvider, logs: Logs) -> None:
    provider, emitter = make(), make()
    began = asyncio.Event()

    @provider.on("short")
    async def short(n: int) -> int:
        began.set()
        await asyncio.sleep(0.05)
        return n

    async with emitter, provider.worker() as worker:
        emission = emitter.emit("short", 1)
        await began.wait()
        worker.request_stop()
        await worker.wait()
        assert await emission == 1
    assert [line for line in logs if "handle" in line["event"]] == []


@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
@pytest.mark.parametrize("awaits", ["event", "flow"])
async def test_a_step_that_awaits_what_only_its_own_worker_would_run_is_given_back_at_once(
    make: MakeProvider, logs: Logs, until: Until, awaits: str, *, spread: bool
) -> None:
    inner = Workflow("inner")

    @inner.step()
    async def give(ctx: StepContext[Any]) -> None: ...

    outer = Workflow("outer", spread=spread)
    began, go = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    @outer.step()
    async def ask(ctx: StepContext[Any]) -> None:
        attempts.append(ctx.attempt)
        began.set()
        await go.wait()
        await (ctx.emit("inner", 1) if awaits == "event" else (await flows.execute(inner, None)).result())

    provider, emitter = make(), make()
    provider.on("inner")(lambda n: 10 * n)
    flows, asker = WorkflowProvider(provider), WorkflowProvider(emitter)
    for each in (flows, asker):
        each.register(inner)
        each.register(outer)
    async with emitter:
        async with provider.worker() as worker:
            flow = await asker.execute(outer, None)
            await began.wait()
            worker.request_stop()
            await until(lambda: worker.health().draining, "it drains")
            go.set()
            await worker.wait()
        (line,) = _said(logs, _STUCK)
        assert line["queues"] == {"workflow.outer.steps" if spread else "workflow.outer": 1}
        assert line["wait_for"] == ["event.inner" if awaits == "event" else "workflow.inner"]
        async with provider.worker():
            await flow.result()
    assert attempts == [1, 1], "no attempt was spent"


async def test_a_handler_that_awaits_many_jobs_that_run_here_may_finish(make: MakeProvider) -> None:
    provider, emitter = make(max_concurrency=100), make()
    began, running = asyncio.Event(), list[int]()

    @provider.on("outer")
    async def outer(n: int, ctx: EventContext) -> int:
        return sum(await asyncio.gather(*(ctx.emit("inner", 1) for _ in range(n))))

    @provider.on("inner", concurrency=50)
    async def inner(n: int) -> int:
        running.append(n)
        if len(running) == 30:
            began.set()
        await asyncio.sleep(0.5)
        return n

    async with emitter, provider:
        async with provider.worker():
            emission = emitter.emit("outer", 30)
            await asyncio.wait_for(began.wait(), 240)
        assert await emission == 30
    assert len(running) == 30
