"""The demo's worker: the handlers of a small shop.

Only the worker process imports this module, because it makes a provider, which raises for a wrong setting.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict

from eventbus import EventContext, EventProvider
from eventbus.cli.commands.demo_events import (
    Order,
    Receipt,
    bill_asked,
    item_counted,
    order_placed,
    order_refused,
    payment_taken,
)

provider: EventProvider = EventProvider()

_bills: defaultdict[str, asyncio.Future[Receipt]] = defaultdict(asyncio.Future)
"""The bills that the group billing has made in this process, by order number."""


def _receipt(order: Order, attempt: int) -> Receipt:
    return Receipt(f"r-{order.number}", order.total * 119 // 100, os.getpid(), attempt)


@provider.on(order_placed)
async def confirm(order: Order, ctx: EventContext) -> Receipt:
    """Answer the emitter with a receipt."""
    return _receipt(order, ctx.attempt)


@provider.on(order_placed, group="billing")
async def bill(order: Order, ctx: EventContext) -> None:
    """Make a bill for every order, independently of `confirm`."""
    if not _bills[order.number].done():  # a handler may run more than once
        _bills[order.number].set_result(_receipt(order, ctx.attempt))


@provider.on(bill_asked)
async def show_bill(number: str) -> Receipt:
    """Wait for the bill that the group billing makes. A real service would read it from its database."""
    return await asyncio.shield(_bills[number])


@provider.on(payment_taken)
async def take_payment(order: Order, ctx: EventContext) -> Receipt:
    """Fail twice, and succeed at the third attempt."""
    if ctx.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return _receipt(order, ctx.attempt)


@provider.on(order_refused)
async def refuse(order: Order) -> Receipt:
    """Fail in an inner function, to show the traceback."""
    return _receipt(order, _stock_of(order))


def _stock_of(order: Order) -> int:
    raise LookupError(f"nothing in stock for order {order.number}")


@provider.on(item_counted, concurrency=100)
async def count(item: int) -> int:
    """Do almost nothing, to show the cost of a job itself."""
    return item + 1
