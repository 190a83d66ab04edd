"""Payments with a number that nobody should read, and a handler that quotes it; for the process pool, too."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from eventbus import Event, Sensitive

__all__ = [
    "Order",
    "PlainOrder",
    "Receipt",
    "Refused",
    "paid",
    "refuse_at_length",
    "refuse_payment",
    "refused",
]


class Order(msgspec.Struct):
    """An order whose card is hidden."""

    id: str
    card: Annotated[str, Sensitive()]


class PlainOrder(msgspec.Struct):
    """The same without a mark."""

    id: str
    card: str


class Receipt(msgspec.Struct):
    """A receipt whose code is hidden."""

    number: int
    code: Annotated[str, Sensitive()]


class Refused(Exception):
    """A declared answer."""


paid = Event("order.paid", payload=Order, result=Receipt)
refused = Event("order.refused", payload=Order, result=Receipt, errors=[Refused])


def refuse_payment(order: Any) -> Receipt:
    """Raise an error that quotes the card, and has a cause that quotes it, too."""
    try:
        raise KeyError(order.card)
    except KeyError as error:
        raise ValueError(f"the card {order.card} was declined") from error


def refuse_at_length(order: Any) -> Receipt:
    """Raise an error whose message and cause quote the card where texts are cut, whatever their length is."""
    text = " ".join([order.card] * 9000)
    try:
        raise KeyError(f"{text}.")
    except KeyError as error:
        raise ValueError(text) from error
