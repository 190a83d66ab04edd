"""Flows started by a process that does not know the steps: the root chooses a version and adds the steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from workflows import StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Release:
    """One version of a workflow, whose step needs three attempts and then a while."""

    def __init__(self, version: str, *, attempts: int = 3, timeout: str | None = None) -> None:
        self.runs: list[str] = []
        self.gate = asyncio.Event()
        retry = Retry(attempts=attempts, delay="1ms")
        self.workflow = Workflow[Any, Any]("w", version=version, retry=retry)
        self.workflow.step(self.work, timeout=timeout)
        self.workflow.completed(self.finish)

    async def work(self, ctx: StepContext[Any]) -> str:
        self.runs.append(f"attempt {ctx.attempt}")
        await self.gate.wait()
        if ctx.attempt < 3:
            raise ValueError("not yet")
        await asyncio.sleep(0.2)
        return "worked"

    async def finish(self, ctx: StepContext[Any]) -> str:
        self.runs.append(f"finish {ctx.attempt}")
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return f"{self.workflow.version} {ctx.result('work')}"


@pytest.fixture
async def start(make_provider: MakeProvider, stack: AsyncExitStack) -> Callable[..., Any]:
    """Start a provider that knows these workflows, with a worker if it is to run them."""

    async def start(*workflows: Workflow[Any, Any], runs: bool = True) -> tuple[WorkflowProvider, Any]:
        provider = make_provider(grace=0.2)
        flows = WorkflowProvider(provider)
        for each in workflows:
            flows.register(each)
        await stack.enter_async_context(provider)
        worker = provider.worker() if runs else None
        if worker is not None:
            await stack.enter_async_context(worker)
        return flows, provider

    return start


async def test_retries_and_timeouts_are_those_of_the_version_that_the_root_chose(
    start: Callable[..., Any], until: Until
) -> None:
    """Also in a worker that did not see the root, and knows a newer version with other settings."""
    old, again = Release("1"), Release("1")
    new = Release("2", attempts=1, timeout="50ms")
    declared = Workflow[Any, Any]("w")
    caller, _ = await start(declared, runs=False)
    _, first = await start(old.workflow)
    handle = await caller.execute(declared, None)
    await until(lambda: old.runs, "the step runs")
    await first.stop()  # it is given back, without an attempt
    old.gate.set()
    again.gate.set()
    await start(again.workflow, new.workflow)
    assert await handle.result() == "1 worked"
    assert again.runs == [*(f"attempt {i}" for i in (1, 2, 3)), *(f"finish {i}" for i in (1, 2, 3))]
    assert new.runs == []


async def test_a_flow_that_nobody_runs_yet_is_cancelled_by_the_first_who_could(
    start: Callable[..., Any],
) -> None:
    declared = Workflow[Any, Any]("w")
    caller, _ = await start(declared, runs=False)
    handle = await caller.execute(declared, None)
    assert (await handle.status()).state == "pending"
    assert await handle.cancel("no longer wanted")
    assert (await handle.status()).state == "rolling_back"
    release = Release("1")
    await start(release.workflow)
    with pytest.raises(Exception, match="no longer wanted"):
        await handle.result()
    assert release.runs == []
    assert (await handle.status()).state == "cancelled"


async def test_a_declared_error_comes_to_who_only_declares(start: Callable[..., Any]) -> None:
    class Declined(Exception):
        pass

    worked = Workflow[Any, Any]("w", errors=[Declined], retry=Retry(attempts=1))

    @worked.step()
    async def charge(ctx: StepContext[Any]) -> None:
        raise Declined("no money")

    declared = Workflow[Any, Any]("w", errors=[Declined])
    caller, _ = await start(declared, runs=False)
    await start(worked)
    with pytest.raises(Declined, match="no money") as caught:
        await (await caller.execute(declared, None)).result()
    assert isinstance(caught.value.__cause__, StepError)
    assert caught.value.__cause__.step == "charge"


@pytest.mark.parametrize(("declares", "spreads"), [(True, True), (True, False), (False, True)])
async def test_a_declaration_decides_nothing_about_the_steps_whether_it_says_spread_or_not(
    start: Callable[..., Any], declares: bool, spreads: bool
) -> None:
    release = Release("1")
    release.workflow.spread = spreads
    release.gate.set()
    await start(release.workflow)
    declared = Workflow[Any, Any]("w", spread=declares)
    caller, _ = await start(declared, runs=False)
    handle = await caller.execute(declared, None)
    assert await handle.result() == "1 worked"
    assert (await handle.report()).order == ["work"]
