"""Tasks of durable functions that ask for a later time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import Later, Retry
from workflows import FlowContext, WorkflowProvider, durable, task
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

OpenFlows = Callable[..., Awaitable[WorkflowProvider]]

did: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()


@task(retry=Retry(attempts=1))
async def poll(name: str) -> str:
    did.append(name)
    if did.count(name) < 3:
        raise Later("1.2s" if name == "long" else "5ms")
    return name.upper()


@durable("polls", retry=Retry(attempts=1))
async def polls(ctx: FlowContext[str]) -> list[str]:
    first = await ctx.step(poll, ctx.input)
    return [first, *await ctx.map(poll, ["x", "y"])]


async def test_a_task_that_asks_for_later_runs_again_without_an_attempt(open_flows: OpenFlows) -> None:
    flows = await open_flows(polls)
    flow = await flows.execute(polls, "short")
    assert await flow.result() == ["SHORT", "X", "Y"]
    assert sorted(did) == sorted(["short", "x", "y"] * 3)
    report = await flow.report()
    assert {step.error for step in report.steps.values()} == {""}


async def test_the_flow_sleeps_without_a_worker_if_the_time_is_long(open_flows: OpenFlows) -> None:
    flows = await open_flows(polls)
    flow = await flows.execute(polls, "long")
    assert await flow.result() == ["LONG", "X", "Y"]
    assert did.count("long") == 3


async def test_an_inline_flow_waits_too() -> None:
    assert await run_inline(polls, "short") == ["SHORT", "X", "Y"]
