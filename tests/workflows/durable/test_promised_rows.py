"""Behaviours of flows that the tables of `docs/seeds` promise, each by its smallest case."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from eventbus import EventProvider, Retry
from workflows import (
    FlowContext,
    Pipeline,
    PipelineContext,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Given(msgspec.Struct):
    number: int


class Total(msgspec.Struct):
    total: int


@task
async def first() -> str:
    return "first"


@task(retry=Retry(attempts=2, delay="1 hour"))
async def second() -> None:
    raise ConnectionError("not yet")


@durable("waits-for-its-retry")
async def waits_for_its_retry(ctx: FlowContext[int]) -> None:
    ctx.state = {"at": "second"}
    await ctx.step(first)
    await ctx.step(second)


@durable("goes-on")
async def goes_on(ctx: FlowContext[int]) -> int:
    for _ in range(3):
        await ctx.step(first)
        await ctx.sleep(0.01)
    return 3


async def test_what_is_done_is_seen_from_elsewhere_while_the_flow_waits_for_its_retry(
    make_provider: MakeProvider, until: Until
) -> None:
    mine, other = make_provider(), make_provider()
    flows, elsewhere = WorkflowProvider(mine), WorkflowProvider(other)
    flows.register(waits_for_its_retry)
    async with mine, other, mine.worker():
        flow = await flows.execute(waits_for_its_retry, 1)

        async def waits() -> bool:
            steps = (await elsewhere.report(flow.id)).steps
            return [step.state for step in steps.values()] == ["completed", "delayed"]

        await until(waits, "it waits for its retry")
        report = await elsewhere.report(flow.id)
        done, tried = report.steps.values()
        assert (done.result, tried.attempts, tried.error) == ("first", 1, "ConnectionError: not yet")
        assert report.own_state == {"at": "second"}
        assert len(await other.jobs.journal(flow.id)) >= 2


async def test_a_flow_that_goes_on_counts_no_attempt(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(goes_on)
    async with provider, provider.worker():
        flow = await flows.execute(goes_on, 1)
        assert await flow.result(240) == 3
        job, report = await provider.inspector.jobs.get(flow.id), await flow.report()
    assert (job.attempts, job.stalls, job.errors) == (0, 0, [])
    assert {step.attempts for step in report.steps.values()} == {0}
    assert len(report.steps) == 6


async def test_flows_without_steps_are_each_done_once_by_two_workers(make_provider: MakeProvider) -> None:
    done: Counter[int] = Counter()
    by: set[str] = set()
    both = asyncio.Event()
    bare: Workflow[int, int] = Workflow("bare", input=int, output=int)

    @bare.completed
    async def finish(ctx: StepContext[int]) -> int:
        done[ctx.input] += 1
        by.add(ctx.worker)
        if len(by) == 2:
            both.set()
        await both.wait()  # the first worker has no more places, so the other one takes the rest
        return ctx.input

    providers = [make_provider(max_concurrency=5) for _ in range(2)]
    first_flows, second_flows = map(WorkflowProvider, providers)
    for flows in (first_flows, second_flows):
        flows.register(bare)
    one, two = providers
    async with one, two, one.worker(), two.worker():
        made = [await first_flows.execute(bare, number) for number in range(20)]
        assert [await flow.result(240) for flow in made] == list(range(20))
    assert done == Counter(range(20))
    assert len(by) == 2


def test_a_pipeline_gives_its_workflow_its_name_types_and_options() -> None:
    retry = Retry(attempts=7)
    workflow = (
        Pipeline("sync", input=Given, output=Total, retry=retry, timeout="5 minutes", concurrency=3)
        .then(add, retry=Retry(attempts=2), timeout="1s", concurrency=4)
        .returns()
    )
    assert (workflow.name, workflow.input, workflow.output) == ("sync", Given, Total)
    assert (workflow.retry, workflow.timeout, workflow.concurrency) == (retry, 300.0, 3)
    (step,) = workflow.steps.values()
    assert (step.retry, step.timeout, step.concurrency) == (Retry(attempts=2), 1.0, 4)


async def add(given: Given) -> Total:
    return Total(given.number + 1)


async def test_a_step_of_a_pipeline_that_its_condition_skips_is_recorded_so(
    make_provider: MakeProvider,
) -> None:
    ran: list[str] = []

    async def never(ctx: PipelineContext[Any]) -> Total:
        ran.append("never")
        return Total(0)

    skips = (
        Pipeline("skips", input=Given)
        .then(never, when=lambda ctx: False)
        .returns(lambda ctx: {"has": "total" in ctx})
    )
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(skips)
    async with provider, provider.worker():
        flow = await flows.execute(skips, Given(1))
        assert await flow.result(240) == {"has": False}
        report = await flow.report()
    assert (ran, report.steps["never"].state, report.steps["never"].result) == ([], "skipped", None)
