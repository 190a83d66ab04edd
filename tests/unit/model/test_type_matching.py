"""Annotations of handlers against the types that events declare."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Generic, List, Literal, NewType, Optional, TypeVar, Union  # noqa: UP035

import msgspec
import pytest
from typing_extensions import TypeAliasType

from eventbus.model.type_matching import types_agree

T = TypeVar("T")


class Order(msgspec.Struct):
    order_id: str


class Express(Order):
    hour: int = 0


class Box(msgspec.Struct, Generic[T]):
    value: T


_Id = NewType("_Id", int)
_Alias = TypeAliasType("_Alias", Optional[int])  # noqa: UP045


@pytest.mark.parametrize(
    ("declared", "annotated"),
    [
        (Order, Order),
        (Order, Any),
        (Any, Order),
        (Order, object),
        (Order, inspect.Parameter.empty),
        (None, type(None)),
        (int | None, Optional[int]),  # noqa: UP045
        (int | str, Union[str, int]),  # noqa: UP007
        (list[int], List[int]),  # noqa: UP006
        (list, list[int]),
        (list[Any], list[int]),
        (dict[str, int | None], dict[str, Optional[int]]),  # noqa: UP045
        (tuple[int, ...], tuple[int, ...]),
        (Annotated[int, msgspec.Meta(gt=0)], int),
        (list[Annotated[int, msgspec.Meta(gt=0)]], list[int]),
        (Literal["a", "b"], Literal["b", "a"]),
        (_Alias, int | None),
        (Box[int], Box[int]),
        (_Id, _Id),
    ],
)
def test_annotations_that_name_the_same_type_agree(declared: Any, annotated: Any) -> None:
    assert types_agree(declared, annotated)
    assert types_agree(annotated, declared)


@pytest.mark.parametrize(
    ("declared", "annotated"),
    [
        (Order, Express),
        (int, str),
        (int, bool),
        (int, int | None),
        (int | str, int | None),
        (list[int], list[str]),
        (list[int], set[int]),
        (tuple[int, ...], tuple[int]),
        (tuple[int, int], tuple[int]),
        (Literal["a"], Literal["b"]),
        (Literal["a"], str),
        (Box[int], Box[str]),
        (None, int),
        (Order, "Order"),
        (_Id, int),
    ],
)
def test_other_annotations_do_not(declared: Any, annotated: Any) -> None:
    assert not types_agree(declared, annotated)
    assert not types_agree(annotated, declared)
