"""Steps that are paused between two attempts: both the number of attempts and what they saved are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Later, Limit, Retry
from workflows import FlowHandle, StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

QUEUE = "workflow.checkout.steps/charge"


class _Charge:
    """A workflow whose step saves something, and then fails or asks for a later time, when the test
    lets it.
    """

    def __init__(self, error: Exception, *, spread: bool, limit: Limit | None) -> None:
        self.error = error
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.seen: list[Any] = []
        self.workflow = Workflow[Any, Any]("checkout", spread=spread, retry=Retry(2, delay="10ms"))
        self.workflow.step(self.charge, limit=limit)

    async def charge(self, ctx: StepContext[Any]) -> None:
        self.seen.append((ctx.attempt, await ctx.saved(int, default=0)))
        if len(self.seen) == 1:
            await ctx.save(5)
            self.begun.set()
            await self.go_on.wait()
            raise self.error


async def _wait_idle(provider: EventProvider, handle: FlowHandle[Any]) -> None:
    """Wait until no worker runs anything of the flow."""
    async with asyncio.timeout(240):
        while True:
            states = {(await provider.inspector.jobs.get(handle.id)).state}
            (held,) = await provider.inspector.queues.controls(QUEUE)
            if states == {"delayed"} or held.waiting:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", [ConnectionError("down"), Later("10ms")], ids=["failed", "later"])
@pytest.mark.parametrize("kind", ["local", "spread", "limited"])
async def test_the_next_attempt_waits_for_the_resume_and_goes_on(
    make_provider: MakeProvider, kind: str, error: Exception
) -> None:
    limit = Limit(at_once=1) if kind == "limited" else None
    charge = _Charge(error, spread=kind == "spread", limit=limit)
    flows = WorkflowProvider(make_provider())
    flows.register(charge.workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(charge.workflow, None)
        await charge.begun.wait()
        await flows.pause(charge.workflow, step="charge")
        await asyncio.sleep(1)  # for so long workers may rely on what they heard before
        charge.go_on.set()
        await _wait_idle(flows.provider, handle)
        assert len(charge.seen) == 1
        await flows.resume(charge.workflow, step="charge")
        await handle.result()
        assert charge.seen == [(1, 0), (2 if isinstance(error, ConnectionError) else 1, 5)]
        assert len(await flows.provider.jobs.journal(handle.id)) < 8, "asking writes nothing"


async def test_a_flow_that_asks_can_be_cancelled(make_provider: MakeProvider) -> None:
    charge = _Charge(ConnectionError("down"), spread=False, limit=None)
    flows = WorkflowProvider(make_provider())
    flows.register(charge.workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(charge.workflow, None)
        await charge.begun.wait()
        await flows.pause(charge.workflow, step="charge")
        await asyncio.sleep(1)
        charge.go_on.set()
        await _wait_idle(flows.provider, handle)
        assert await handle.cancel()
        async with asyncio.timeout(240):
            while (await handle.report()).state != "cancelled":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(charge.seen) == 1
