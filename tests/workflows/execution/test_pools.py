"""Steps and tasks in named pools: they share the places of their worker, and their timeouts count from a
place on.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from importable import pooled_flows
from importable.pooled_flows import NoPaper, Picture

from eventbus import DefinitionError, EventProvider, Retry
from workflows import (
    FlowCancelled,
    FlowContext,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)
from workflows.testing import run_inline

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


@pytest.fixture
def flows(make_provider: MakeProvider) -> WorkflowProvider:
    provider = make_provider(reply_timeout=60)
    provider.pool("render", processes=1)
    provider.pool("wait", threads=1)
    return WorkflowProvider(provider)


async def _run(flows: WorkflowProvider, definition: Any, given: Any) -> Any:
    flows.register(definition)
    async with flows.provider, flows.provider.worker():
        return await (await flows.execute(definition, given)).result()


async def test_tasks_run_in_their_pools_with_their_step_keys(flows: WorkflowProvider) -> None:
    flows.register(pooled_flows.draws)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(pooled_flows.draws, Picture("cat", 3))
        drawn, sketched, pinned = await handle.result()
    assert drawn.name == "cat 6", "arguments by place and by name arrive with their types"
    assert len({drawn.pid, sketched.pid, pinned.pid}) == 3
    assert pinned.pid == os.getpid()
    assert "eventbus" in pinned.thread
    assert [one.key for one in (drawn, sketched, pinned)] == [f"{handle.id}/1/{at}" for at in range(3)]


async def test_errors_of_a_task_in_a_process_are_those_of_the_task(flows: WorkflowProvider) -> None:
    with pytest.raises(NoPaper, match="there is none"):
        await _run(flows, pooled_flows.draws, Picture("none"))


async def test_the_death_of_its_process_fails_the_attempt_of_a_task(flows: WorkflowProvider) -> None:
    flows.register(pooled_flows.draws)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(pooled_flows.draws, Picture("dies"))
        with pytest.raises(StepError, match=r"SIGKILL.*after 2 attempts"):
            await handle.result()


async def test_the_items_of_a_map_share_the_places(flows: WorkflowProvider) -> None:
    drawn = await _run(flows, pooled_flows.maps, [Picture(str(number)) for number in range(6)])
    assert [one.name for one in drawn] == [f"{number} 1" for number in range(6)]
    assert len({one.pid for one in drawn}) == 1
    assert len({one.key for one in drawn}) == 6


async def test_waiting_for_a_place_does_not_count_for_the_timeout_of_a_task(flows: WorkflowProvider) -> None:
    assert await _run(flows, pooled_flows.queues, 2.1) == [os.getpid()] * 2


@pytest.mark.parametrize("spread", [False, True])
async def test_waiting_for_a_place_does_not_count_for_the_timeout_of_a_step(
    flows: WorkflowProvider, spread: bool
) -> None:
    workflow = pooled_flows.spread_prints if spread else pooled_flows.prints
    first, second, third = await _run(flows, workflow, 2.1)
    assert first == second == os.getpid() != third


async def test_a_timeout_still_ends_a_step_in_a_pool(flows: WorkflowProvider) -> None:
    with pytest.raises(StepError, match=r"timed out: it ran longer than its timeout of 4 s"):
        await _run(flows, pooled_flows.prints, 8)


async def test_a_cancel_ends_who_runs_and_who_waits(
    flows: WorkflowProvider, tmp_path: Path, until: Until
) -> None:
    flows.register(pooled_flows.holds)
    async with flows.provider, flows.provider.worker() as worker:
        handle = await flows.execute(pooled_flows.holds, str(tmp_path))
        await until(lambda: list(tmp_path.glob("*.running")), "one holds the place")
        await handle.cancel("enough")
        with pytest.raises(FlowCancelled):
            await handle.result()
        await until(lambda: worker._pools["render"].places.free == 1, "the place is free again")
    begun = list(tmp_path.glob("*.running"))  # noqa: ASYNC240
    assert len(begun) == 1, "the other one never began"


async def test_a_place_is_taken_once_by_who_holds_it(flows: WorkflowProvider) -> None:
    flows.register(pooled_flows.draws)
    async with flows.provider, flows.provider.worker() as worker:
        handles = [await flows.execute(pooled_flows.draws, Picture(str(number))) for number in range(5)]
        results = await asyncio.gather(*(handle.result() for handle in handles))
        assert worker._pools["render"].places.free == worker._pools["wait"].places.free == 1
    assert len({drawn.pid for drawn, _, _ in results}) == 1


def where(_: StepContext[Any]) -> int:
    return os.getpid()


async def test_a_step_with_an_unknown_pool_is_refused_at_the_start(flows: WorkflowProvider) -> None:
    workflow = Workflow[Any, Any]("lost")
    workflow.step(where, pool="redner")
    with pytest.raises(
        DefinitionError,
        match=r'step .where. of .* one of "thread", "process", "render", "wait", got: .redner.',
    ):
        await _run(flows, workflow, None)


@task(pool="redner")
def misnamed(number: int) -> int:
    return number


@durable("misnames")
async def misnames(ctx: FlowContext[int]) -> int:
    return await ctx.step(misnamed, ctx.input)


_hidden = {"task": misnamed}


@durable("hides")
async def hides(ctx: FlowContext[int]) -> int:
    return await ctx.step(_hidden["task"], ctx.input)


async def test_a_task_with_an_unknown_pool_is_refused_at_the_start(flows: WorkflowProvider) -> None:
    with pytest.raises(
        DefinitionError, match=r"expected pool of task 'misnamed' to be one of .*got: 'redner'"
    ):
        await _run(flows, misnames, 1)


async def test_a_task_that_the_start_cannot_see_fails_once_with_the_reason(flows: WorkflowProvider) -> None:
    flows.register(hides)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(hides, 1)
        with pytest.raises(StepError, match=r"expected pool of task 'misnamed' .*after 1 attempt\)"):
            await handle.result()


async def test_a_task_that_no_process_can_find_is_refused_at_the_start(
    flows: WorkflowProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    @task(pool="render")
    def inner(number: int) -> int:
        return number

    monkeypatch.setitem(globals(), "local", inner)
    with pytest.raises(DefinitionError, match="expected task 'inner' to be a function at the top level"):
        await _run(flows, calls_local, 1)


local: Any = None


@durable("calls-local")
async def calls_local(ctx: FlowContext[int]) -> int:
    return await ctx.step(local, ctx.input)


def test_an_async_task_has_no_pool() -> None:
    async def waits() -> None: ...

    with pytest.raises(DefinitionError, match="task 'waits' is async and runs in the event loop"):
        task(pool="render")(waits)
    with pytest.raises(DefinitionError, match=r"expected pool of task .* got: 4"):
        task(pool=4)(where)  # pyright: ignore[reportArgumentType, reportCallIssue]


async def test_inline_flows_run_everything_in_threads() -> None:
    first, second, _ = await run_inline(pooled_flows.prints, 0)
    assert first == second == os.getpid()
    drawn, sketched, _ = await run_inline(pooled_flows.draws, Picture("cat"))
    assert drawn.pid == sketched.pid == os.getpid()


async def test_a_handler_goes_on_when_a_step_frees_the_place(flows: WorkflowProvider, until: Until) -> None:
    begun, gate = threading.Event(), threading.Event()
    workflow = Workflow[Any, Any]("gated")

    def hold(_: StepContext[Any]) -> None:
        begun.set()
        assert gate.wait(240)

    def echo(payload: Any) -> Any:
        return payload

    async def free(payload: Any) -> Any:
        return payload

    workflow.step(hold, pool="wait")
    flows.register(workflow)
    provider = flows.provider
    provider.on("echoed", pool="wait")(echo)
    provider.on("free")(free)
    async with provider, provider.worker():
        try:
            handle = await flows.execute(workflow, None)
            await until(begun.is_set, "the step has the place")
            echoed = provider.emit("echoed", 1)
            assert await provider.emit("free", 2) == 2
            assert not echoed.done()
        finally:
            gate.set()
        assert await echoed == 1
        await handle.result()


async def test_a_step_that_waits_for_a_slot_holds_no_place(make_provider: MakeProvider) -> None:
    provider = make_provider(reply_timeout=60, concurrency=1)
    provider.pool("wait", threads=1)
    flows, workflow = WorkflowProvider(provider), Workflow[None, Any]("crossed")
    provider.on("drawn", pool="wait")(lambda payload: payload)  # type: ignore[arg-type]

    @workflow.step(after=None)
    async def asks(ctx: StepContext[None]) -> int:
        await asyncio.sleep(0.05)  # the other step waits for this slot now
        return await ctx.emit("drawn", 1)

    workflow.step(where, pool="wait", after=None)
    flows.register(workflow)
    async with provider, provider.worker() as worker:
        handles = [await flows.execute(workflow, None) for _ in range(3)]
        for handle in handles:
            await handle.result(timeout=240)
        assert worker._pools["wait"].places.free == 1, "and none is lost"


async def test_a_thread_that_outlives_a_spread_step_keeps_its_place(make_provider: MakeProvider) -> None:
    begun, gate = list[int](), threading.Event()
    provider = make_provider(reply_timeout=60)
    provider.pool("wait", threads=1)
    flows = WorkflowProvider(provider)
    workflow = Workflow[int, Any]("outlived", spread=True, retry=Retry(attempts=1))

    @workflow.step(pool="wait", timeout=2)
    def hold(ctx: StepContext[int]) -> int:
        begun.append(ctx.input)
        assert ctx.input or gate.wait(240)
        return ctx.input

    flows.register(workflow)
    async with provider, provider.worker():
        first, second = [await flows.execute(workflow, number) for number in range(2)]
        try:
            with pytest.raises(StepError, match="timed out"):
                await first.result()
            await asyncio.sleep(3)  # longer than the timeout of the second
            assert begun == [0]
        finally:
            gate.set()
        await second.result()
        assert begun == [0, 1]


async def test_a_handler_stands_in_the_line_of_steps(flows: WorkflowProvider, until: Until) -> None:
    order, gate = list[str](), threading.Event()
    workflow = Workflow[None, Any]("many", spread=True)
    provider = flows.provider

    @workflow.step(pool="wait")
    def hold(_: StepContext[None]) -> None:
        order.append("step")
        assert gate.wait(240)

    flows.register(workflow)
    provider.on("noted", pool="wait")(order.append)

    async def execute(count: int, line: int) -> list[Any]:
        handles = [await flows.execute(workflow, None) for _ in range(count)]
        await until(lambda: len(worker._pools["wait"].places._line) >= line, f"{line} wait")
        return handles

    async with provider, provider.worker() as worker:
        try:
            handles = await execute(3, 2)
            noted = provider.emit("noted", "handler")
            await noted.enqueued()
            handles += await execute(3, 5)
        finally:
            gate.set()
        await asyncio.gather(noted, *(handle.result() for handle in handles))
    assert order.index("handler") < 6, "it did not wait for those that came later"
