"""The concurrency of steps, workflows and durable functions in one worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, Retry
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable, step, task

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


class Crowd:
    """Counts who is inside at a time, by name."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self.runs: dict[str, int] = {}
        self._inside: dict[str, int] = {}

    @asynccontextmanager
    async def inside(self, name: str) -> AsyncGenerator[None]:
        self._inside[name] = self._inside.get(name, 0) + 1
        self.runs[name] = self.runs.get(name, 0) + 1
        self.most[name] = max(self.most.get(name, 0), self._inside[name])
        try:
            yield
        finally:
            self._inside[name] -= 1


@asynccontextmanager
async def _served(provider: EventProvider, *definitions: Any) -> AsyncGenerator[WorkflowProvider]:
    flows = WorkflowProvider(provider)
    for definition in definitions:
        flows.register(definition)
    async with provider, provider.worker():
        yield flows


@pytest.mark.parametrize("spread", [False, True])
async def test_no_more_attempts_of_a_step_run_than_its_concurrency(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    crowd = Crowd()
    workflow = Workflow[Any, Any]("limited", spread=spread, retry=Retry(attempts=2, delay=0))

    async def work(ctx: StepContext[Any]) -> str:
        async with crowd.inside(ctx.step):
            await asyncio.sleep(0.05)
            if ctx.step == "narrow" and ctx.attempt == 1:
                raise ConnectionError("again")
        return ctx.step

    workflow.step(work, name="wide", after=None)
    workflow.step(work, name="narrow", after=None, concurrency=2)
    workflow.step(work, name="last", after=["wide", "narrow"])
    async with _served(make_provider(concurrency=20), workflow) as flows:
        handles = [await flows.execute(workflow, None) for _ in range(12)]
        await asyncio.gather(*(handle.result() for handle in handles))
    assert crowd.runs == {"wide": 12, "narrow": 24, "last": 12}
    assert crowd.most["narrow"] == 2
    assert crowd.most["wide"] > 2, "the limit of one step holds back others"


@pytest.mark.parametrize("spread", [False, True])
async def test_a_step_that_waits_for_its_turn_holds_back_no_other_step_and_a_cancel_ends_its_wait(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    workflow = Workflow[Any, Any]("held", spread=spread, retry=Retry(attempts=1))
    begun, go_on, others = asyncio.Semaphore(0), asyncio.Event(), asyncio.Semaphore(0)

    async def hold(_: StepContext[Any]) -> None:
        begun.release()
        await go_on.wait()

    async def other(_: StepContext[Any]) -> None:
        others.release()

    workflow.step(hold, name="hold", after=None, concurrency=1, timeout="20s")
    workflow.step(other, name="other", after=None)
    async with _served(make_provider(concurrency=10), workflow) as flows:
        handles = [await flows.execute(workflow, None) for _ in range(3)]
        for _ in handles:
            await others.acquire()
        await begun.acquire()
        assert await handles[2].cancel("not needed")
        go_on.set()
        ends = await asyncio.gather(*(handle.result() for handle in handles), return_exceptions=True)
    assert [type(end).__name__ for end in ends].count("FlowCancelled") == 1
    assert [end for end in ends if end is None] == [None, None]


async def test_no_more_flows_of_a_workflow_run_than_its_concurrency(make_provider: MakeProvider) -> None:
    crowd = Crowd()
    two_at_a_time = asyncio.Barrier(2)
    workflow = Workflow[Any, Any]("few", concurrency=2)

    @workflow.step
    async def work(_: StepContext[Any]) -> None:
        async with crowd.inside("flow"):
            await two_at_a_time.wait()

    async with _served(make_provider(concurrency=20), workflow) as flows:
        handles = [await flows.execute(workflow, None) for _ in range(8)]
        await asyncio.gather(*(handle.result() for handle in handles))
    assert (crowd.runs["flow"], crowd.most["flow"]) == (8, 2)


async def test_no_more_flows_of_a_durable_function_run_than_its_concurrency(
    make_provider: MakeProvider,
) -> None:
    crowd = Crowd()

    two_at_a_time = asyncio.Barrier(2)

    @task
    async def work() -> None:
        async with crowd.inside("flow"):
            await two_at_a_time.wait()

    @durable("few-functions", concurrency=2)
    async def function(ctx: FlowContext[Any]) -> None:
        await ctx.step(work)

    async with _served(make_provider(concurrency=20), function) as flows:
        handles = [await flows.execute(function, None) for _ in range(8)]
        await asyncio.gather(*(handle.result() for handle in handles))
    assert (crowd.runs["flow"], crowd.most["flow"]) == (8, 2)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_a_concurrency_that_is_no_positive_integer_is_refused(wrong: Any) -> None:
    async def work(_: StepContext[Any]) -> None: ...

    async def function(_: FlowContext[Any]) -> None: ...

    makers: list[Callable[[], Any]] = [
        lambda: step(work, concurrency=wrong),
        lambda: Workflow[Any, Any]("w", concurrency=wrong),
        lambda: durable("f", concurrency=wrong)(function),
    ]
    for make in makers:
        with pytest.raises(DefinitionError, match=r"expected concurrency of .* to be a positive integer"):
            make()


def test_names_that_are_too_long_for_the_queue_of_a_limited_step_are_refused() -> None:
    workflow = Workflow[Any, Any]("w" * 120)

    async def work(_: StepContext[Any]) -> None: ...

    workflow.step(work, name="s" * 125, concurrency=1)
    with pytest.raises(DefinitionError, match="give workflow and step shorter names"):
        workflow.check()
