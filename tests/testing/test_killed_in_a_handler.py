"""A worker that is killed by its own code, at whatever it does: nothing of that reaches the server any more,
and its provider goes on with all that both share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import EventProvider, ProviderStopped, ResponseTimeout, UsageError
from eventbus.testing import TestBus
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable, task

Do = Callable[[Callable[[], None]], Awaitable[None]]


async def _return(kill: Callable[[], None]) -> None:
    kill()


async def _wait(kill: Callable[[], None]) -> None:
    kill()
    await asyncio.sleep(1)


async def _begin_tasks(kill: Callable[[], None]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(asyncio.sleep(0))
        kill()
        tasks.create_task(asyncio.sleep(0))


async def _kill_beside_others(kill: Callable[[], None]) -> None:
    async def one() -> None:
        kill()

    await asyncio.gather(one(), *(asyncio.sleep(0) for _ in range(5)))


@pytest.mark.parametrize("do", [_return, _wait, _begin_tasks, _kill_beside_others])
async def test_what_it_emitted_before_may_have_come_and_nothing_else(do: Do) -> None:
    provider = EventProvider(name="shop")
    told: list[str] = []
    dies = [True]

    @provider.on("told")
    async def hear(what: str) -> None:
        told.append(what)

    @provider.on("asked")
    async def ask(_: int) -> None:
        provider.emit("told", "before")
        if dies:
            await do(kill)
            provider.emit("told", "after")

    def kill() -> None:
        dies.clear()
        bus.kill_worker()
        with pytest.raises(ProviderStopped):
            provider.emit("told", "dead")
        with pytest.raises(ProviderStopped):
            provider.emit_many("told", ["dead", "dead"])

    async with TestBus(provider) as bus:
        asked = provider.emit("asked", 1, reply_timeout="1h")
        await bus.settle()
        assert not dies
        await bus.start_worker()
        await provider.emit("told", "another")
        await asked
        await bus.settle()
        assert [run.name for run in bus.ran if run.name == "asked"] == ["asked", "asked"]
    assert sorted(told) == ["another", "before", "before"]


async def test_tasks_that_begin_at_once_do_not_begin() -> None:
    provider = EventProvider(name="shop")
    began: list[str] = []

    async def begin() -> None:
        began.append("dead")

    @provider.on("asked")
    async def ask(_: int) -> None:
        bus.kill_worker()
        asyncio.get_running_loop().create_task(begin())

    async with TestBus(provider) as bus:
        # What Python 3.11 does not have behaves there as the usual way to make a task.
        asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", None))
        try:
            provider.emit("asked", 1, reply=False)
            await bus.settle()
        finally:
            asyncio.get_running_loop().set_task_factory(None)
    assert began == []


async def test_many_that_are_ready_in_the_same_moment() -> None:
    provider = EventProvider(name="shop")
    runs: list[int] = []

    @provider.on("asked", concurrency=30)
    async def ask(number: int) -> None:
        await asyncio.sleep(1)
        runs.append(number)
        if len(runs) == 1:
            bus.kill_worker()

    async with TestBus(provider) as bus:
        asked = provider.emit_many("asked", range(30), reply_timeout="1h")
        await bus.advance("1s")
        assert len(runs) == 1
        await bus.start_worker()
        for emission in asked:
            await emission
    assert len(runs) == 31


async def test_the_first_timer_of_a_timeout_was_set_by_it() -> None:
    provider = EventProvider(name="shop")

    @provider.on("never")
    async def never(_: int) -> None:
        await asyncio.sleep(3600)

    @provider.on("asked")
    async def ask(_: int) -> None:
        await provider.emit("never", 1, reply_timeout="5s")

    async with TestBus(provider) as bus:
        provider.emit("asked", 1, reply=False)
        await bus.settle()
        waits = asyncio.ensure_future(_outcome_of(provider))
        await bus.settle()
        bus.kill_worker()
        assert await waits == "no outcome"


async def _outcome_of(provider: EventProvider) -> str:
    try:
        await provider.emit("never", 2, reply_timeout="10s")
    except ResponseTimeout:
        return "no outcome"
    return "an outcome"


async def test_an_answer_that_its_run_called_for_is_sent_once_it_comes_again() -> None:
    provider = EventProvider(name="shop")
    flows = WorkflowProvider(provider)
    approved = Signal("approved", int)
    reminded = asyncio.Event()

    @task
    async def remind(_: None) -> None:
        reminded.set()

    @durable("approval")
    async def approval(ctx: FlowContext[int]) -> int:
        await ctx.step(remind, None)
        return await ctx.wait_for(approved)

    flows.register(approval)
    async with TestBus(provider) as bus:
        flow = await flows.execute(approval, 1)
        bus.signal_when(flow, approved, 5, after=remind)
        await reminded.wait()
        bus.kill_worker()
        await bus.start_worker()
        assert await flow.result() == 5
        await bus.settle()


async def test_a_large_tree_was_on_its_way() -> None:
    provider = EventProvider(name="shop")
    flows = WorkflowProvider(provider)
    large = Workflow[int, Any]("large", input=int, spread=True)
    for n in range(150):
        large.step(name=f"s{n}")(_step)
    flows.register(large)

    @provider.on("asked")
    async def ask(_: int) -> None:
        starting = asyncio.ensure_future(flows.execute(large, 1))
        await asyncio.sleep(0)
        bus.kill_worker()
        await starting

    async with TestBus(provider) as bus:
        provider.emit("asked", 1, reply=False)
        await bus.settle()


async def _step(ctx: StepContext[int]) -> int:
    return ctx.input


async def test_a_subscription_was_on_its_way() -> None:
    provider = EventProvider(name="shop")

    async def later(_: int) -> None: ...

    @provider.on("asked")
    async def ask(number: int) -> None:
        if number:
            subscribing = asyncio.ensure_future(provider.subscribe("later", later))
            await asyncio.sleep(0)
            bus.kill_worker()
            await subscribing

    async with TestBus(provider) as bus:
        provider.emit("asked", 1, reply=False)
        await bus.settle()
        await bus.start_worker()
        await provider.emit("asked", 0, reply_timeout="1h")


async def test_a_lone_run_tells_that_its_worker_was_killed_also_if_it_returned() -> None:
    provider = EventProvider(name="shop")

    @provider.on("asked")
    async def ask(_: int) -> str:
        bus.kill_worker()
        return "of the dead"

    async with TestBus(provider) as bus:
        with pytest.raises(UsageError, match="the worker was killed while it ran the handler"):
            await bus.run("asked", 1)
