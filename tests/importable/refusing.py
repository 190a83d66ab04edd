"""A handler for the process pool that raises declared errors, and notes each attempt in a file."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from eventbus import Event

__all__ = ["Busy", "Order", "Refused", "SoldOut", "ordered", "refuse"]


class Order(msgspec.Struct):
    how: str
    notes: str
    """The file that gets a line for each attempt."""


class Refused(Exception):
    pass


class SoldOut(Refused):
    pass


class Busy(Refused):
    pass


ordered = Event("ordered", payload=Order, result=int, errors=[Refused, TimeoutError], retry_on=[Busy])


def refuse(order: Order) -> int:
    """Note the attempt, then do what the order says."""
    with Path(order.notes).open("a") as file:
        file.write("tried\n")
    if order.how == "hang":
        time.sleep(600)
    raise {"sold out": SoldOut, "busy": Busy, "refused": Refused, "late": TimeoutError}.get(
        order.how, KeyError
    )(order.how)
