"""1. Emit an event, and await what its handler returns.

An event is a name with two types: that of its payload and that of its result. Each emission of it becomes a
job in the server, and a worker runs the handler for that job. Emitter and worker may be different processes;
here they are one.
"""

from typing import Annotated

import msgspec
import pytest

from eventbus import Event, EventProvider, PayloadError


class Order(msgspec.Struct):
    order_id: str
    total: Annotated[int, msgspec.Meta(ge=0)]


class Receipt(msgspec.Struct):
    number: str


order_placed = Event("order.placed", payload=Order, result=Receipt)
provider = EventProvider("memory:")  # a real Valkey server, from the provider's start to its stop


@provider.on(order_placed)
async def confirm(order: Order) -> Receipt:
    return Receipt(f"r-{order.order_id}")


async def test_an_emitter_awaits_the_result_of_the_handler() -> None:
    async with provider, provider.worker():  # the provider emits; its worker runs the handlers
        receipt = await provider.emit(order_placed, Order("o-1", 990))
        assert receipt.number == "r-o-1"  # the type checker knows that it is a Receipt

        with pytest.raises(PayloadError, match="total"):  # a wrong payload is never sent
            provider.emit(order_placed, Order("o-2", -1))
