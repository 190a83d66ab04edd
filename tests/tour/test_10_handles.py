"""10. Any process can look at a flow and cancel it, if it has the id of the flow.

A handle has the state of each step in its `report`, and its `cancel` stops the flow and rolls it back. The
command line does the same, without your code: `eventbus flows list`, `show ID` and `cancel ID`.
"""

import asyncio

import pytest

from eventbus import EventProvider
from workflows import FlowCancelled, StepContext, Workflow, WorkflowProvider


async def test_a_flow_is_inspected_and_cancelled_by_its_id() -> None:
    packing = asyncio.Event()
    checkout = Workflow("checkout", input=int)

    @checkout.step()
    async def charge(ctx: StepContext[int]) -> int:
        return ctx.input

    @charge.rollback
    async def refund(ctx: StepContext[int], paid: int) -> None:
        ctx.log.info("refunding", paid=paid)

    @checkout.step()
    async def pack(ctx: StepContext[int]) -> None:
        packing.set()
        await asyncio.sleep(3600)  # a long step: the cancel ends it

    provider = EventProvider("memory:")
    flows = WorkflowProvider(provider)
    flows.register(checkout)
    async with provider, provider.worker():
        flow_id = (await flows.execute(checkout, 990)).id
        await packing.wait()

        flow = flows.handle(flow_id, checkout)  # as in another process, which has only the id
        steps = (await flow.report()).steps
        assert (steps["charge"].result, steps["pack"].state) == (990, "active")

        assert await flow.cancel("the customer left")
        with pytest.raises(FlowCancelled, match="the customer left") as cancelled:
            await flow.result()
        assert cancelled.value.rollback == "complete"  # `refund` ran

        assert [each.flow_id for each in await flows.flows("checkout", state="cancelled")] == [flow_id]
