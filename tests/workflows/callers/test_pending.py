"""A flow is pending until a worker has claimed anything of it, however it was started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from workflows import StepContext, Workflow, WorkflowProvider
from workflows.records.report import FlowState

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


class Mill:
    """A workflow whose first steps wait to be let go."""

    def __init__(self, steps: int = 3) -> None:
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.workflow = Workflow[Any, Any]("mill", version="1", retry=Retry(attempts=2, delay="1h"))
        for number in range(steps):
            self.workflow.step(self._work, name=f"s{number}", after=None)
        self.workflow.completed(self._finish)

    async def _work(self, ctx: StepContext[Any]) -> None:
        self.began.set()
        await self.gate.wait()

    async def _finish(self, ctx: StepContext[Any]) -> None:
        pass


async def _told(flows: WorkflowProvider, flow_id: str) -> set[FlowState]:
    """What each way to ask says; all should say the same."""
    (listed,) = [each for each in await flows.flows() if each.flow_id == flow_id]
    states: set[FlowState] = {
        (await flows.handle(flow_id).status()).state,
        (await flows.report(flow_id)).state,
        listed.state,
    }
    assert [each.flow_id for each in await flows.flows(state=listed.state)] == [flow_id]
    return states


@pytest.mark.parametrize("kind", ["full", "bare", "no steps", "large"])
async def test_a_flow_that_no_worker_has_seen_is_pending(make_provider: MakeProvider, kind: str) -> None:
    mill = Mill({"no steps": 0, "large": 300}.get(kind, 3))
    caller = WorkflowProvider(make_provider())
    worker_provider = make_provider(grace=0.2)
    worker = WorkflowProvider(worker_provider)
    worker.register(mill.workflow)
    executed = Workflow[Any, Any]("mill") if kind == "bare" else mill.workflow
    caller.register(executed)
    async with caller.provider:
        handle = await caller.execute(executed, None)
        assert await _told(caller, handle.id) == {"pending"}
        async with worker_provider, worker_provider.worker():
            if kind != "no steps":
                await mill.began.wait()
                assert await _told(caller, handle.id) == {"running"}
            mill.gate.set()
            await handle.result()
        assert await _told(caller, handle.id) == {"completed"}
        again = await caller.retry(handle.id)
        assert await _told(caller, handle.id) == {"pending"}
        async with worker_provider, worker_provider.worker():
            await again.result()


async def test_what_a_worker_gave_back_is_no_longer_pending(make_provider: MakeProvider) -> None:
    mill = Mill()
    provider, worker_provider = make_provider(), make_provider(grace=0.1)
    flows, worker = WorkflowProvider(provider), WorkflowProvider(worker_provider)
    for each in (flows, worker):
        each.register(mill.workflow)
    async with provider:
        handle = await flows.execute(mill.workflow, None)
        async with worker_provider, worker_provider.worker():
            await mill.began.wait()
        assert {each.state for each in (await handle.report()).steps.values()} == {"waiting"}
        assert await _told(flows, handle.id) == {"running"}
        assert await handle.cancel()
