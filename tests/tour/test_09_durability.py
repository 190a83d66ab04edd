"""9. A flow outlives its worker: the next worker continues after the last recorded step.

Here the worker and the server stop in the middle of a step, and both start again. The recorded step does not
run again; the interrupted one does. After a `kill -9` the next worker does the same as soon as the lease of
the dead one has expired: `examples/checkout_killed.py` shows it.
"""

import asyncio
from pathlib import Path

from eventbus import EventProvider
from workflows import StepContext, Workflow, WorkflowProvider


async def test_the_next_worker_continues_after_the_last_recorded_step(tmp_path: Path) -> None:
    ran: list[str] = []
    shipping, courier_is_there = asyncio.Event(), asyncio.Event()
    checkout = Workflow("checkout", input=int, output=str)

    @checkout.step()
    async def charge(ctx: StepContext[int]) -> int:
        ran.append("charge")
        return ctx.input

    @checkout.step()
    async def ship(ctx: StepContext[int]) -> None:
        ran.append("ship")
        shipping.set()
        await courier_is_there.wait()

    @checkout.completed
    async def receipt(ctx: StepContext[int]) -> str:
        return f"paid {ctx.result(charge)}"

    url = f"embedded:{tmp_path}"  # a server that keeps its data in this folder
    first = EventProvider(url, grace=0)  # its stop does not wait for running steps
    flows = WorkflowProvider(first)
    flows.register(checkout)
    async with first, first.worker():
        flow_id = (await flows.execute(checkout, 990)).id
        await shipping.wait()
    assert ran == ["charge", "ship"]

    courier_is_there.set()
    second = EventProvider(url)
    flows = WorkflowProvider(second)
    flows.register(checkout)
    async with second, second.worker():
        assert await flows.handle(flow_id, checkout).result() == "paid 990"
    assert ran == ["charge", "ship", "ship"]
