import asyncio

import msgspec

from eventbus import Event, EventContext, EventProvider, Retry


class Order(msgspec.Struct):
    order_id: str
    total: int


class Receipt(msgspec.Struct):
    number: str


order_placed = Event("order.placed", payload=Order, result=Receipt)
provider = EventProvider()  # EVENTBUS_URL, else an embedded server with its data in ./.eventbus


@provider.on(order_placed, retry=Retry(attempts=5), timeout="10s")
async def confirm(order: Order, ctx: EventContext) -> Receipt:
    ctx.log.info("confirming", total=order.total)
    return Receipt(f"r-{order.order_id}")


@provider.on(order_placed, group="billing")  # gets every emission too, on its own
async def bill(order: Order) -> None:
    print("billed", order.total)


async def main() -> None:
    async with provider, provider.worker():
        receipt = await provider.emit(order_placed, Order("o-1", 990))
        print(receipt.number)  # -> r-o-1


if __name__ == "__main__":
    asyncio.run(main())
