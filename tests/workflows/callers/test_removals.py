"""Removing flows by hand: what has ended goes with all that belongs to it, and what is open stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry, UnknownJob, UsageError
from workflows import StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


def _shop(gate: asyncio.Event, *, spread: bool) -> Workflow[int, int]:
    payment = Workflow[int, int]("payment", input=int, output=int, spread=spread, retry=Retry(attempts=1))

    @payment.step
    async def charge(ctx: StepContext[int]) -> int:
        await gate.wait()
        if ctx.input < 0:
            raise ValueError("no money")
        return ctx.input

    @payment.completed
    async def paid(ctx: StepContext[int]) -> int:
        return ctx.result(charge)

    shop = Workflow[int, int]("shop", input=int, output=int, spread=spread, retry=Retry(attempts=1))
    pay = shop.flow(payment)

    @shop.completed
    async def sold(ctx: StepContext[int]) -> int:
        return ctx.result(pay)

    return shop


@pytest.mark.parametrize("spread", [False, True])
async def test_a_flow_that_has_ended_is_removed_and_one_that_is_open_stays(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    provider, gate = make_provider(), asyncio.Event()
    flows, shop = WorkflowProvider(provider), _shop(gate, spread=spread)
    flows.register(shop)
    async with provider, provider.worker():
        good, bad = await flows.execute(shop, 7), await flows.execute(shop, -1)
        assert await flows.remove(good.id) is False, "it is open"
        gate.set()
        assert await good.result() == 7
        with pytest.raises(StepError):
            await bad.result()
        (inner,) = (await flows.tree(good.id)).nested["payment"]
        with pytest.raises(UsageError, match=r"whose step 'payment' started it; remove that flow"):
            await flows.remove(inner.report.flow_id)
        for handle in (good, bad):
            assert await flows.remove(handle.id) is True
            with pytest.raises(UnknownJob):
                await flows.remove(handle.id)
            for ask in (flows.retry, flows.report, flows.tree, flows.status):
                with pytest.raises(UnknownJob):
                    await ask(handle.id)
        assert await flows.flows() == []
        assert await flows.handle(good.id, shop).result() == 7, "who asks soon still finds it"


async def test_what_is_no_flow_is_not_removed(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        flows: Any = WorkflowProvider(provider)
        job = provider.emit("a", 1, reply=False)
        await job.enqueued()
        for text in ("shop~0123456789abcdef0123", job.job_id, ""):
            with pytest.raises(UnknownJob):
                await flows.remove(text)
        assert (await provider.inspector.jobs.get(job.job_id)).state == "waiting"
