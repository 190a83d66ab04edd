"""The shop that the demo runs: the handlers of its worker process.

Only that process imports it: it makes a provider, which raises where a setting is wrong.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict

from eventbus import EventContext, EventProvider
from eventbus.cli.demo_events import (
    Order,
    Receipt,
    bill_asked,
    item_counted,
    order_placed,
    order_refused,
    payment_taken,
)

__all__ = ["provider"]

provider = EventProvider()

_bills: defaultdict[str, asyncio.Future[Receipt]] = defaultdict(asyncio.Future)
"""What the group billing made, in this process."""


def _receipt(order: Order, attempt: int) -> Receipt:
    return Receipt(f"r-{order.number}", order.total * 119 // 100, os.getpid(), attempt)


@provider.on(order_placed)
async def confirm(order: Order, ctx: EventContext) -> Receipt:
    """Answer the emitter."""
    return _receipt(order, ctx.attempt)


@provider.on(order_placed, group="billing")
async def bill(order: Order, ctx: EventContext) -> None:
    """Get every order too, on its own."""
    if not _bills[order.number].done():  # a handler may run more than once
        _bills[order.number].set_result(_receipt(order, ctx.attempt))


@provider.on(bill_asked)
async def show_bill(number: str) -> Receipt:
    """Wait for what the other group made of an order; a service would keep it in its database."""
    return await asyncio.shield(_bills[number])


@provider.on(payment_taken)
async def take_payment(order: Order, ctx: EventContext) -> Receipt:
    """Succeed at the third attempt."""
    if ctx.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return _receipt(order, ctx.attempt)


@provider.on(order_refused)
async def refuse(order: Order) -> Receipt:
    """Fail, somewhere inside."""
    return _receipt(order, _stock_of(order))


def _stock_of(order: Order) -> int:
    raise LookupError(f"nothing in stock for order {order.number}")


@provider.on(item_counted, concurrency=100)
async def count(item: int) -> int:
    """Do next to nothing, to show what a job costs."""
    return item + 1
