"""Untyped values are JSON values; depth and size have limits, typed or not."""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.errors import PayloadError
from eventbus.model.codec import Codec

NOW = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)


class Stamped(msgspec.Struct):
    name: str
    extra: Any = None


class Tree(msgspec.Struct):
    children: list[Tree] = []


class Pair(NamedTuple):
    a: int


class Colour(enum.Enum):
    RED = "red"


class Parcel(pydantic.BaseModel):
    n: int


def codec(type_: Any = Any, max_bytes: int = 1 << 20) -> Codec:
    return Codec(type_, role="payload", owner="order.placed", max_bytes=max_bytes)


def refusal(function: Callable[[Any], object], value: Any) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        function(value)
    assert caught.value.event == "order.placed"
    assert caught.value.role == "payload"
    assert 'payload of "order.placed"' in str(caught.value)
    return caught.value


def nested(levels: int, core: Any = None) -> Any:
    value: Any = [] if core is None else [core]
    for _ in range(levels - 1):
        value = [value]
    return value


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
_JSON = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@pytest.mark.slow
@given(_JSON)
def test_json_values_arrive_as_they_are(value: Any) -> None:
    arrived = codec().decode(codec().encode(value))
    assert arrived == value
    assert repr(arrived) == repr(value)  # 1, 1.0 and True are equal and not the same


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ((1, 2), "$"),
        ({"a": (1,)}, "$.a"),
        ({"items": [1, 2, 3, {"when": datetime(2024, 2, 29)}]}, "$.items[3].when"),
        ({"a b": {1}}, "$[...]"),
        ({1: 2}, "$[...]"),
        ({"1": 0, 1: 0}, "$"),
        ({(1, 2): 3}, None),
        (math.nan, "$"),
        ({"a": [math.inf]}, "$.a[0]"),
        ({"a": [-math.inf]}, "$.a[0]"),
        ("\ud800", "$"),
        ({"\udfff": 1}, "$[...]"),
        (b"x", "$"),
        (Decimal(1), "$"),
        (uuid.UUID(int=1), "$"),
        (Colour.RED, "$"),
        (Stamped("a"), "$"),
        (Pair(1), "$"),
        ({"a": object()}, "$.a"),
        ({"a": [Parcel(n=1)]}, "$.a[0]"),
        pytest.param(10**5000, "$", id="digits"),
    ],
)
def test_anything_but_json_is_refused_with_its_place(value: Any, path: str | None) -> None:
    assert refusal(codec().encode, value).path == path


def test_the_type_that_is_no_json_is_named() -> None:
    assert str(refusal(codec().encode, {"items": [0, NOW]})) == (
        'payload of "order.placed": a value of type datetime would arrive as str; '
        "expected dict, list, str, int, float, bool or None at $.items[1]"
    )


def test_integers_of_any_size_travel() -> None:
    for value in (2**63, 2**64, -(2**64), 2**1000):
        assert codec().decode(codec().encode(value)) == value


@pytest.mark.parametrize("type_", [Any, Stamped])
def test_a_hundred_levels_are_the_limit(type_: Any) -> None:
    def wrap(value: Any) -> Any:
        return value if type_ is Any else Stamped("a", extra=value)

    own = 0 if type_ is Any else 1
    for core in (None, 1):
        fits = codec(type_).encode(wrap(nested(100 - own, core)))
        for form in (fits, fits.decode(), memoryview(fits)):
            assert codec(type_).decode(form) == wrap(nested(100 - own, core))
        assert "100 levels" in str(refusal(codec(type_).encode, wrap(nested(101 - own, core))))
        assert "100 levels" in str(
            refusal(codec(type_).decode, msgspec.json.encode(wrap(nested(101 - own, core))))
        )


def test_a_recursive_type_has_the_same_limit() -> None:
    tree = Tree()
    for _ in range(60):
        tree = Tree([tree])
    assert "100 levels" in str(refusal(codec(Tree).encode, tree))


def test_wide_values_are_not_deep() -> None:
    value = {"rows": [{"text": "[{" * 100}] * 300}
    assert codec().decode(codec().encode(value)) == value


def test_values_that_hold_themselves_are_too_deep() -> None:
    knot: list[Any] = []
    knot.extend([knot, knot])
    for value in (knot, nested(5000)):
        assert "100 levels" in str(refusal(codec().encode, value))
    assert "100 levels" in str(refusal(codec().decode, b"[" * 50_000))


def test_an_error_inside_a_knot_is_found() -> None:
    knot: list[Any] = [object()]
    knot.extend([knot, knot])
    assert refusal(codec().encode, knot).path == "$[0]"


def test_size_is_limited_at_encode_only() -> None:
    small = codec(str, max_bytes=10)
    assert small.encode("x" * 8) == b'"xxxxxxxx"'
    assert str(refusal(small.encode, "x" * 9)) == (
        'payload of "order.placed" (str): expected at most 10 bytes, got: 11 bytes'
    )
    assert small.decode(b'"' + b"x" * 50 + b'"') == "x" * 50
