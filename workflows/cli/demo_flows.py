"""The flows of `eventbus demo --dashboard`: a checkout, of which every third is undone because the parcel
cannot be sent.
"""

from __future__ import annotations

import asyncio

import msgspec

from eventbus import EventBusError, EventProvider, Retry
from workflows import StepContext, Workflow, WorkflowProvider

_PAUSE = 3.0
"""Seconds between two flows."""


class Basket(msgspec.Struct):
    """What a customer buys, and with which card."""

    order: str
    total: int
    card: str


checkout: Workflow[Basket, str] = Workflow(
    "checkout", input=Basket, output=str, retry=Retry(attempts=2, delay=1)
)


@checkout.step()
async def reserve(ctx: StepContext[Basket]) -> str:
    """Take the goods from the stock."""
    await asyncio.sleep(0.3)
    return f"reserved for {ctx.input.order}"


@reserve.rollback
async def release(ctx: StepContext[Basket], reserved: str) -> None:
    """Put the goods back."""
    ctx.log.debug("released", what=reserved)
    await asyncio.sleep(0.2)


@checkout.step(after=reserve)
async def charge(ctx: StepContext[Basket]) -> str:
    """Take the money."""
    await asyncio.sleep(0.5)
    return f"charged {ctx.input.total}"


@charge.rollback
async def refund(ctx: StepContext[Basket], charged: str) -> None:
    """Give the money back."""
    ctx.log.debug("refunded", what=charged)
    await asyncio.sleep(0.3)


@checkout.step(after=charge)
async def ship(ctx: StepContext[Basket]) -> str:
    """Send the parcel, if there is a van."""
    await asyncio.sleep(0.4)
    if int(ctx.input.order.rpartition("-")[2]) % 3 == 0:
        raise LookupError(f"no van for {ctx.input.order}")
    return f"parcel of {ctx.input.order}"


@checkout.completed
async def confirm(ctx: StepContext[Basket]) -> str:
    """Return what the customer is told."""
    return f"{ctx.input.order} is on its way"


class FlowDemo:
    """What this package adds to the demo."""

    worker: str = "workflows.cli.demo_app:provider"

    async def play(self, provider: EventProvider) -> None:
        """Start a flow each three seconds, until cancelled."""
        flows = WorkflowProvider(provider)
        flows.register(checkout)
        number = 0
        while True:
            number += 1
            try:
                await flows.execute(checkout, Basket(f"o-{number}", 10 * number, "4111111111111111"))
            except EventBusError:
                return  # the demo ends
            await asyncio.sleep(_PAUSE)


demo: FlowDemo = FlowDemo()
