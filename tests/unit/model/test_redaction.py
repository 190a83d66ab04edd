"""Where types are sensitive, and what is shown instead."""

from __future__ import annotations

import dataclasses
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    NewType,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
)

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from eventbus import Sensitive
from eventbus.model.redaction.hidden_values import HiddenValues
from eventbus.model.redaction.marks import Marks, encode_marks, find_marks
from eventbus.model.redaction.redacting import hide, hide_in_text, sensitive_texts

T = TypeVar("T")
Secret = Annotated[str, Sensitive()]
Pin = NewType("Pin", int)


class Card(msgspec.Struct, rename="camel"):
    card_number: Secret
    holder: str = ""
    others: list[Card] = []


class Row(msgspec.Struct, array_like=True):
    name: str
    secret: Secret


class Box(msgspec.Struct, Generic[T]):
    content: T


@dataclasses.dataclass
class Data(Generic[T]):
    plain: int
    given: T
    boxes: list[Box[T]]


@attrs.define
class Attrs:
    pin: Annotated[Pin, Sensitive()]
    plain: int = 0


class Dict(TypedDict, total=False):
    card: Card
    token: Annotated[str, Sensitive]


class Partial(TypedDict):
    card: NotRequired[Secret]
    again: Required[Secret]


@dataclasses.dataclass
class Inherited(Data[Secret]):
    fixed: Final[Secret] = ""  # type: ignore[misc]


class Root(pydantic.RootModel[Secret]):
    """A model that is its one field."""


class Roots(pydantic.RootModel[list["Model"]]):
    """A model that is a list of models."""


class HasRoots(pydantic.BaseModel):
    one: Root
    many: Roots


@pydantic.dataclasses.dataclass
class Aliased:
    card: Secret = pydantic.Field(alias="Card")


Named = NewType("Named", Secret)  # type: ignore[valid-newtype]


class Pair(NamedTuple):
    plain: int
    secret: Secret


class Model(pydantic.BaseModel):
    card: Secret = pydantic.Field(alias="Card")
    plain: int = 0


CARD = {"cardNumber": "4111", "holder": "ann", "others": [{"cardNumber": "5111", "holder": "bob"}]}


@pytest.mark.parametrize(
    ("type_", "value", "secrets"),
    [
        (Card, CARD, ["4111", "5111"]),
        (Card | None, CARD, ["4111", "5111"]),
        (list[Card], [CARD], ["4111", "5111"]),
        (dict[str, Card], {"*": CARD}, ["4111", "5111"]),
        (tuple[int, Card], [1, CARD], ["4111", "5111"]),
        (Box[Card], {"content": CARD}, ["4111", "5111"]),
        (Row, ["ann", "s3cret"], ["ann", "s3cret"]),
        (Data[Secret], {"plain": 1, "given": "gggg", "boxes": [{"content": "bbbb"}]}, ["gggg", "bbbb"]),
        (Attrs, {"pin": 4712, "plain": 1234}, ["4712"]),
        (Dict, {"card": CARD, "token": "tttt"}, ["4111", "5111", "tttt"]),
        (Pair, [1234, "ssss"], ["1234", "ssss"]),
        (Model, {"Card": "4111", "plain": 1234}, ["4111"]),
        (Secret, "whole", ["whole"]),
        (Partial, {"card": "cccc", "again": "aaaa"}, ["cccc", "aaaa"]),
        (list[Partial], [{"card": "cccc", "again": "aaaa"}], ["cccc", "aaaa"]),
        (
            Inherited,
            {"plain": 1, "given": "gggg", "boxes": [{"content": "bbbb"}], "fixed": "ffff"},
            ["gggg", "bbbb", "ffff"],
        ),
        (Root, "root", ["root"]),
        (Roots, [{"Card": "cccc", "plain": 1}], ["cccc"]),
        (HasRoots, {"one": "oooo", "many": [{"Card": "cccc", "plain": 1}]}, ["oooo", "cccc"]),
        (Aliased, {"Card": "cccc"}, ["cccc"]),
        (Named, "nnnn", ["nnnn"]),
        (Secret | None, "whole", ["whole"]),
        (Annotated[dict[str, list[int]], Sensitive()], {"a": [1234, 5678]}, ["1234", "5678"]),
    ],
)
def test_marked_values_are_found_in_values_of_all_kinds(type_: Any, value: Any, secrets: list[str]) -> None:
    marks = find_marks(type_)
    assert set(sensitive_texts(value, marks)) == set(secrets)
    shown = msgspec.json.encode(hide(value, marks)).decode()
    assert not any(secret in shown for secret in secrets)
    assert "•••" in shown


@pytest.mark.parametrize("type_", [int, str, Any, None, dict[str, int], Data[int], list["Unknown"]])  # type: ignore[name-defined]  # noqa: F821
def test_a_type_without_marks_hides_nothing(type_: Any) -> None:
    assert find_marks(type_) is None
    assert hide(CARD, None) == CARD


def test_what_is_not_marked_stays_as_it_is() -> None:
    hidden = hide(CARD, find_marks(Card))
    assert hidden["holder"] == "ann"
    assert hidden["others"][0]["holder"] == "bob"


def test_equal_values_look_equal_and_others_do_not() -> None:
    marks = find_marks(list[Secret])
    one, same, other = hide(["4111", "4111", "4112"], marks)
    assert one == same != other
    assert len(one) == len("•••") + 8


def test_texts_that_quote_a_value_are_hidden_in_each_of_its_forms() -> None:
    value = 'a"b\n\\c'
    forms = sensitive_texts(value, find_marks(Secret))
    text = f"{value} | {value!r} | {msgspec.json.encode(value).decode()}"
    for form in (value, repr(value)[1:-1], msgspec.json.encode(value).decode()[1:-1]):
        assert form not in hide_in_text(text, forms)


def test_the_longer_of_two_values_is_hidden_first() -> None:
    forms = sensitive_texts(["4111", "4111-22"], find_marks(list[Secret]))
    assert "-22" not in hide_in_text("card 4111-22 refused", forms)


def test_short_values_and_flags_are_not_looked_for_in_texts() -> None:
    assert sensitive_texts(["ab", True, None, 12], [{}]) == []


@pytest.mark.parametrize(
    "marks",
    ["x", 1, [], [[]], [{}, {"card": [7]}], [{}, {"card": [-1]}], {"a": 1}, [{}, {"card": 0}]],
)
def test_damaged_marks_hide_more_and_never_less(marks: Any) -> None:
    body = msgspec.json.encode({"p": {"card": "4111"}, "hide": {"p": marks}}).decode()
    shown = HiddenValues(body).in_payload({"card": "4111"})
    assert "4111" not in msgspec.json.encode(shown).decode()


@pytest.mark.parametrize("body", ["", "nonsense", "[1]", '{"p":1}', '{"p":1,"hide":3}', "\ud800"])
def test_a_body_without_marks_hides_nothing(body: str) -> None:
    hidden = HiddenValues(body)
    assert hidden.in_payload(CARD) == CARD
    assert hidden.in_body(CARD) == CARD
    assert hidden.in_text("4111") == "4111"


def test_marks_are_short_and_the_same_each_time() -> None:
    encoded = encode_marks(p=Card, result=int)
    assert encoded == encode_marks(p=Card, result=int)
    assert len(encoded) < 100
    marks: dict[str, Marks] = msgspec.json.decode(encoded)
    assert hide(CARD, marks["p"]) == hide(CARD, find_marks(Card))
    assert encode_marks(p=int, result=str) == b""
