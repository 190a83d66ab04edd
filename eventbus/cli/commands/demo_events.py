"""The events of the demo's shop. The emitter imports only this module, not the handlers."""

from __future__ import annotations

import msgspec

from eventbus import Event, Retry


class Order(msgspec.Struct, frozen=True):
    """An order of a customer."""

    number: str
    total: int


class Receipt(msgspec.Struct, frozen=True):
    """A receipt. `process` is the id of the process that made it, `attempt` the number of the attempt."""

    number: str
    total: int
    process: int
    attempt: int


order_placed: Event[Order, Receipt] = Event("order.placed", payload=Order, result=Receipt)
order_refused: Event[Order, Receipt] = Event(
    "order.refused", payload=Order, result=Receipt, retry=Retry(attempts=1)
)
payment_taken: Event[Order, Receipt] = Event(
    "payment.taken", payload=Order, result=Receipt, retry=Retry(attempts=5, delay="200ms", backoff="fixed")
)
bill_asked: Event[str, Receipt] = Event("bill.asked", payload=str, result=Receipt)
item_counted: Event[int, int] = Event("item.counted", payload=int, result=int)
