"""Errors for a payload of the wrong type: what was expected, what was given, and how to write it."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

from eventbus.errors import PayloadError
from eventbus.model.codec import Codec


class Item(msgspec.Struct):
    number: int


class Rare(Item):
    left: int = 1


class Order(msgspec.Struct):
    order_id: str
    items: list[Item] = []
    price: Decimal | None = None
    due: datetime | None = None
    note: Any = None


@dataclasses.dataclass
class Plain:
    number: int


class Model(pydantic.BaseModel):
    number: int


class Colour(enum.Enum):
    RED = "red"


class Typed(TypedDict):
    number: int


class Point(NamedTuple):
    x: int


_UNTYPED: Any = {"number": 2}


def _said(type_: Any, value: Any) -> str:
    with pytest.raises(PayloadError) as caught:
        Codec(type_, role="payload", owner="order.placed", max_bytes=1000).encode(value)
    where = caught.value.path
    said = str(caught.value).partition(": ")[2]
    assert where is None or said.endswith(f" at {where}")
    return said


@pytest.mark.parametrize(
    ("type_", "value", "said"),
    [
        (Order, {"order_id": "a"}, "expected Order, got: dict; write Order(**...) at $"),
        (Order, {}, "expected Order, got: dict; write Order(**...) at $"),
        (Order | None, {"order_id": "a"}, "expected Order, got: dict; write Order(**...) at $"),
        (list[Item], [{"number": 1}], "expected Item, got: dict; write Item(**...) at $[0]"),
        (Order, Order("a", [Item(1), _UNTYPED]), "expected Item, got: dict; write Item(**...) at $.items[1]"),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
        (Plain, {"number": 1}, "expected Plain, got: dict; write Plain(**...) at $"),
        (Model, {"number": 1}, "expected Model, got: dict; write Model(**...) at $"),
        (Order, Order, "expected Order, got: the class Order itself at $"),
        (Order, Item, "expected Order, got: the class Item itself at $"),
        (Model, Model, "expected Model, got: the class Model itself at $"),
        (Order, None, "expected Order, got: None at $"),
        (Order, "a", "expected Order, got: str at $"),
        (Order, [Order("a")], "expected Order, got: list at $"),
        (Order, Item(1), "expected Order, got: Item at $"),
        (Order, object(), "expected Order, got: object at $"),
        (Item, Rare(1), "expected Item, got: Rare at $"),
        (Plain, Item(1), "expected Plain, got: Item at $"),
        (int, "5", "expected int, got: str at $"),
        (float, "5", "expected float, got: str at $"),
        (timedelta, 5, "expected timedelta, got: int at $"),
        (Decimal, 1.5, "expected Decimal, got: float; write Decimal(...) at $"),
        (uuid.UUID, "4be0643f-1d98-573b-97cd-ca98a65347dd", "expected UUID, got: str; write UUID(...) at $"),
        (Colour, "red", "expected Colour, got: str; write Colour(...) at $"),
        (
            Order,
            Order("a", price=5),  # pyright: ignore[reportArgumentType]
            "expected Decimal, got: int; write Decimal(...) at $.price",
        ),
        (
            Order,
            Order("a", due="2026-01-01T00:00:00Z"),  # pyright: ignore[reportArgumentType]
            "expected datetime, got: str at $.due",
        ),
        # Where nothing was declared, what arrives is what JSON has.
        (
            Order,
            Order("a", note=datetime(2026, 1, 1, tzinfo=UTC)),
            "a value of type datetime would arrive as str at $.note",
        ),
        (Order, Order("a", note=Item(1)), "a value of type Item would arrive as dict at $.note"),
        # Inside, the words of msgspec.
        (int, True, "Expected `int`, got `bool`"),
        (Item, Item("1"), "Expected `int`, got `str` at $.number"),  # pyright: ignore[reportArgumentType]
        (Typed, {"number": "1"}, "Expected `int`, got `str` at $.number"),
        (Point, ("1",), "Expected `int`, got `str` at $[0]"),
        (list, (float("nan"),), "expected a finite number, got: NaN or infinity at $[0]"),
        (Literal["a"], "b", "Invalid enum value 'b'"),
        (None, 5, "Expected `null`, got `int`"),
    ],
)
def test_a_value_of_another_type_is_named_with_what_was_expected(type_: Any, value: Any, said: str) -> None:
    assert _said(type_, value) == said


def test_no_value_is_told() -> None:
    assert "hunter2" not in _said(Order, {"password": "hunter2"})
    assert "hunter2" not in _said(int, "hunter2")
