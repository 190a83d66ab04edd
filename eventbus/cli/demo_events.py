"""The events of the shop that the demo runs. They alone are imported by whoever emits."""

from __future__ import annotations

import msgspec

from eventbus import Event, Retry

__all__ = [
    "Order",
    "Receipt",
    "bill_asked",
    "item_counted",
    "order_placed",
    "order_refused",
    "payment_taken",
]


class Order(msgspec.Struct, frozen=True):
    """What a customer wants."""

    number: str
    total: int


class Receipt(msgspec.Struct, frozen=True):
    """What the customer gets; `process` is where it was made, `attempt` how often it was tried."""

    number: str
    total: int
    process: int
    attempt: int


order_placed = Event("order.placed", payload=Order, result=Receipt)
order_refused = Event("order.refused", payload=Order, result=Receipt, retry=Retry(attempts=1))
payment_taken = Event(
    "payment.taken", payload=Order, result=Receipt, retry=Retry(attempts=5, delay="200ms", backoff="fixed")
)
bill_asked = Event("bill.asked", payload=str, result=Receipt)
item_counted = Event("item.counted", payload=int, result=int)
