"""Where types are sensitive, and what is shown instead."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
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
from uuid import UUID

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import Sensitive
from eventbus.model.redaction.forms import forms_of
from eventbus.model.redaction.hidden_values import HiddenTexts, HiddenValues, find_texts
from eventbus.model.redaction.marks import Marks, encode_marks, find_marks
from eventbus.model.redaction.places import DOTS, blank, find_hidden_in, plain, record_places
from eventbus.model.redaction.redacting import hide, is_secret_name
from eventbus.telemetry.failure import describe, read_failure

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


def sensitive_texts(value: Any, marks: Marks | None) -> list[str]:
    """Return the forms in which texts quote what is marked in a value, longest first."""
    return list(find_texts({"p": value}, {} if marks is None else {"p": [marks]}, None).sensitive)


def hide_in_text(text: str, forms: list[str]) -> str:
    return record_places(text, (), forms)


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
    texts = set(sensitive_texts(value, marks))
    assert texts == {form for secret in secrets for form in forms_of(secret) if len(form) > 2}
    shown = msgspec.json.encode(hide(value, marks)).decode()
    assert not any(secret in shown for secret in secrets)
    assert "•••" in shown


@pytest.mark.parametrize(
    "type_",
    [
        *(int, str, Any, None, dict[str, int], Data[int]),
        list["Unknown"],  # type: ignore[name-defined]  # noqa: F821
    ],
)
def test_a_type_without_marks_hides_nothing(type_: Any) -> None:
    assert find_marks(type_) is None
    assert hide(CARD, None) == CARD


def test_what_is_not_marked_stays_as_it_is() -> None:
    hidden = hide(CARD, find_marks(Card))
    assert hidden["holder"] == "ann"
    assert hidden["others"][0]["holder"] == "bob"


def test_what_is_shown_instead_of_a_value_says_nothing_of_it() -> None:
    """Otherwise somebody emits all values that a secret may have, and compares."""
    marks = find_marks(list[Secret])
    one, same = hide(["4111", "4111"], marks, where="j-1/p")
    assert one != same
    assert hide(["4112", "x"], marks, where="j-1/p") == [one, same]
    assert hide(["4111", "4111"], marks, where="j-2/p")[0] != one
    named = hide({"token": ["a", "a"], "n": 1}, None, names=is_secret_name, where="j-1/p")
    assert len({*named["token"], one, same}) == 4
    assert named["n"] == 1


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
    "marks", ["x", 1, [], [[]], [{}, {"card": [7]}], [{}, {"card": [-1]}], {"a": 1}, [{}, {"card": 0}]]
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


_MOMENT = datetime(2026, 3, 1, 9, 0, 5, 120000, tzinfo=UTC)
_IN_ANOTHER_ZONE = _MOMENT.astimezone(timezone(timedelta(hours=2)))
_ID = UUID("12345678-90ab-cdef-1234-567890abcdef")
_LONG = timedelta(days=3, hours=2, microseconds=5)


@pytest.mark.parametrize(
    ("value", "text", "part"),
    [
        (b"key\x00\xff\xfe1", repr(b"key\x00\xff\xfe1"), "key"),
        (b"key\x00\xff\xfe1", b"key\x00\xff\xfe1".hex(), "6b6579"),
        (b"pass word\n", "pass word\n", "pass"),
        (b"pass word\n", "bytearray(b'pass word\\n')", "pass"),
        (_MOMENT, str(_MOMENT), "2026"),
        (_MOMENT, repr(_MOMENT), "2026"),
        (_MOMENT, _MOMENT.isoformat(), "2026"),
        (_MOMENT.replace(microsecond=0), f"{_MOMENT:%Y-%m-%d %H:%M:%S}", "2026"),
        (_IN_ANOTHER_ZONE, str(_IN_ANOTHER_ZONE), "2026"),
        (_IN_ANOTHER_ZONE, repr(_IN_ANOTHER_ZONE), "2026"),
        (date(1971, 12, 24), "1971-12-24", "1971"),
        (date(1971, 12, 24), repr(date(1971, 12, 24)), "1971"),
        (time(23, 15, 7), repr(time(23, 15, 7)), "23, 15"),
        (_LONG, str(_LONG), "3 days"),
        (_LONG, repr(_LONG), "days=3"),
        (_ID, repr(_ID), "12345678"),
        (_ID, _ID.hex, "12345678"),
        (Decimal("1234.50"), repr(Decimal("1234.50")), "1234"),
        (1e22, str(1e22), "1e+22"),
    ],
)
def test_values_that_are_printed_otherwise_than_in_json_are_hidden(value: Any, text: str, part: str) -> None:
    given = msgspec.json.decode(msgspec.json.encode(value))
    assert part in text
    shown = hide_in_text(f"the value {text} is wrong", sensitive_texts(given, find_marks(Secret)))
    assert part not in shown
    assert re.fullmatch(r"the value .*•••.* is wrong", shown)


def test_a_date_is_not_looked_for_as_the_midnight_that_it_might_be() -> None:
    assert not any("00:00" in form for form in sensitive_texts("2026-03-01", find_marks(Secret)))


@pytest.mark.parametrize("kept", range(1, 20))
def test_no_part_of_a_value_is_left_where_a_text_was_cut(kept: int) -> None:
    secret = "Zq7-Kx9_Wv3+Ju5:Hy1."
    forms = sensitive_texts(secret, find_marks(Secret))
    for text in (
        f"the card {secret[:kept]}...",
        f"the card {secret[:kept]}\n... 5 characters left out ...\nat the end",
        f"the card\n... 5 characters left out ...\n{secret[kept:]} at the end",
        f"the card {secret[:kept]}\n... 1 characters left out ...\n{secret[kept + 1 :]} at the end",
    ):
        shown = hide_in_text(text, forms)
        assert not set("ZqKxWvJHy") & set(shown), shown
        assert shown.startswith("the card")


def test_a_cut_where_no_value_stands_changes_nothing() -> None:
    text = "the step took too long\n... 5 characters left out ...\nso it ended..."
    assert hide_in_text(text, ["secret", "pass-word"]) == text


@given(
    text=st.text(alphabet="ab1•\ufdd0\ufdd1", max_size=60),
    hidden=st.lists(st.text(alphabet="ab1", min_size=3, max_size=5), max_size=20),
    gone=st.lists(st.text(alphabet="ab1", min_size=3, max_size=5), max_size=20),
)
def test_a_recorded_text_shows_no_value_and_keeps_what_is_not_gone(
    text: str, hidden: list[str], gone: list[str]
) -> None:
    given_text = plain(text)
    recorded = record_places(given_text, hidden, gone)
    assert not any(value in blank(recorded) for value in (*hidden, *gone))
    assert not any(value in plain(recorded) for value in gone)
    if not any(value in given_text for value in gone):
        assert plain(recorded) == given_text
    assert find_hidden_in(recorded) <= {
        given_text[start:end] for start in range(len(given_text)) for end in range(start, len(given_text) + 1)
    }


@given(
    text=st.text(alphabet="ab1 ", max_size=60),
    hidden=st.lists(st.text(alphabet="ab1", min_size=3, max_size=5), max_size=4),
    cut=st.integers(0, 70),
)
def test_a_text_that_was_cut_later_shows_nothing_behind_the_beginning_of_a_place(
    text: str, hidden: list[str], cut: int
) -> None:
    shown = blank(record_places(text, hidden)[:cut])
    assert not any(value[:3] in shown for value in hidden if value in text)


def test_places_stay_when_a_record_is_searched_again() -> None:
    once = record_places("one abc two def three", ["abc"])
    twice = record_places(once, ["def"], ["two"])
    assert blank(twice) == "one ••• ••• ••• three"
    assert plain(twice) == "one abc ••• def three"
    assert find_hidden_in(twice) == {"abc", "def"}


def test_nobody_can_open_or_close_a_place() -> None:
    error = ValueError("\ufdd1 a secret \ufdd0 rest")
    record = describe(error, attempts=1, hidden=HiddenTexts(secret=("secret",)))
    assert blank(msgspec.json.decode(record)["message"]) == " a •••  rest"
    assert read_failure(record).message == " a secret  rest"


@pytest.mark.parametrize("kind", ["marked", "named"])
def test_the_search_for_hidden_values_is_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many of them: the text is hidden as a whole, because it may quote one that was not reached."""
    made: list[str] = []
    monkeypatch.setattr(
        "eventbus.model.redaction.hidden_values.forms_of", lambda text: made.append(text) or {text}
    )
    values = [f"value-{n:06d}" for n in range(110_000)]
    body: dict[str, Any] = {"p": {"token" if kind == "named" else "x": values}}
    if kind == "marked":
        body["hide"] = {"p": [{}, {"x": [0]}]}
    hidden = HiddenValues(msgspec.json.encode(body).decode(), names=is_secret_name)
    assert len(made) <= 1001
    recorded = hidden.texts.recorded("value-099999 is wrong")
    assert blank(recorded) == "•••"
    assert plain(recorded) == ("•••" if kind == "marked" else "value-099999 is wrong")
    large = HiddenValues(msgspec.json.encode({"p": {"token": ["x" * 1000] * 900, "n": 1}}).decode())
    assert large.texts == HiddenTexts()  # nothing is looked for by names unless somebody asks
    many = {"p": {f"n{n}": n for n in range(200_000)} | {"token": "abcdef"}}
    assert not find_texts(many, {}).has_all_secret


@pytest.mark.parametrize(
    ("names", "is_secret"),
    [
        ("password dbPass dbpass pass passwd passphrase passport secret client_secret credentials", True),
        ("token tokens accessToken refresh_tokens card cardNumber creditcard APIKey api_key API-Key", True),
        (
            "iBAN ibans IBANNumber debtoriban SSNLast4 passhash passnumber tokenization_key cached_tokens",
            True,
        ),
        ("iban IBAN customerIban ssn userSSN authorization Authorisation cvv cvc", True),
        ("passenger passed bypass compass surpass tokenizer tokenise max_tokens promptTokens", False),
        ("token_count discard wildcard scorecard cardinality cardio caliban classname", False),
    ],
)
def test_a_name_is_secret_by_its_words(names: str, is_secret: bool) -> None:
    assert {name: is_secret_name(name) for name in names.split()} == dict.fromkeys(names.split(), is_secret)


def test_no_two_places_look_alike() -> None:
    shown = hide(
        {"a/b": {"token": 1}, "a": {"b": {"token": 1}}, "a~1b": {"token": 1}}, None, names=is_secret_name
    )
    assert len({shown["a/b"]["token"], shown["a"]["b"]["token"], shown["a~1b"]["token"]}) == 3


@pytest.mark.parametrize("tail", [1, 3, 40])
def test_the_end_of_a_value_at_the_end_of_a_cut_text_is_hidden(tail: int) -> None:
    value = "".join(f"{n:04}" for n in range(50))
    text = f"begins {value[:9]}\n... 180 characters left out ...\n{value[-tail:]}"
    recorded = record_places(text, [value])
    assert blank(recorded) == "begins •••\n... 180 characters left out ...\n•••"
    assert plain(recorded) == text


def test_a_text_that_looks_cut_very_often_is_hidden_as_a_whole() -> None:
    text = "\n... 5 characters left out ...\n" * 500
    assert blank(record_places(text, ["secret-1"])) == DOTS


def test_a_text_with_places_is_hidden_as_a_whole_where_there_are_too_many_values() -> None:
    text = record_places("own-token and tok-00005", ["own-token"])
    recorded = HiddenTexts(has_all_secret=False).recorded(text)
    assert blank(recorded) == DOTS
    assert plain(recorded) == "own-token and tok-00005"


def test_a_part_of_a_value_before_a_cut_is_found_behind_a_false_beginning() -> None:
    text = "zaab\n... 180 characters left out ...\nend"
    assert blank(record_places(text, ["abcdef"])) == f"za{DOTS}{text[4:]}"
