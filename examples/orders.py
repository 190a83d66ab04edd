"""A small shop: the commands below emit its events, one by one and from a file.

eventbus worker orders:provider
eventbus emit price '{"order_id": "o-1", "total": 990}' --await
eventbus emit price --lines orders.jsonl --await > receipts.jsonl
"""

from __future__ import annotations

import asyncio

import msgspec

from eventbus import Event, EventContext, EventProvider, Retry


class Order(msgspec.Struct):
    order_id: str
    total: int


class Receipt(msgspec.Struct):
    number: str
    gross: int


class OutOfStock(Exception):
    pass


price = Event("price", payload=Order, result=Receipt, errors=[OutOfStock], retry=Retry(attempts=1))
order_placed = Event("order.placed", payload=Order, result=Receipt, key=lambda order: order.order_id)

provider = EventProvider()


@provider.on(price, concurrency=50)
async def price_order(order: Order) -> Receipt:
    if order.total < 0:
        raise OutOfStock(order.order_id)
    return Receipt(f"r-{order.order_id}", order.total * 119 // 100)


@provider.on(order_placed, retry=Retry(attempts=5, delay="1s", max_delay="30s"), timeout="10s")
async def confirm(order: Order, ctx: EventContext) -> Receipt:
    ctx.log.info("confirming", total=order.total)
    return await ctx.emit(price, order)


@provider.on(order_placed, group="billing")
async def bill(order: Order, ctx: EventContext) -> None:
    ctx.log.info("billing", order=order.order_id)


async def main() -> None:
    """Emit and handle in one process; `eventbus worker orders:provider` handles in another one."""
    async with provider, provider.worker():
        print(await provider.emit(order_placed, Order("o-1", 990)))


if __name__ == "__main__":
    asyncio.run(main())
