"""Declared errors arrive as they were raised, whatever their constructors take."""

from __future__ import annotations

import dataclasses
import string
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import HandlerError
from eventbus.model.redaction.hidden_values import NOTHING_HIDDEN, HiddenTexts
from eventbus.telemetry.failure import describe, revive, without


def there_and_back(
    error: Exception, kind: type[Exception] | None = None, hidden: HiddenTexts = NOTHING_HIDDEN
) -> Any:
    kind = kind or type(error)
    text = describe(error, attempts=1, declared=[kind], hidden=hidden)
    return revive("failed", text, event="ask", job_id="j", declared=[kind])


class NotFound(Exception):
    def __init__(self, sku: str) -> None:
        super().__init__(f"no article {sku}")
        self.sku = sku


class Missing(Exception):
    def __init__(self, sku: str, *, left: int) -> None:
        super().__init__(f"{left} of {sku}")
        self.sku, self.left = sku, left


class Silent(Exception):
    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class Reduced(Exception):
    def __init__(self, one: str, other: int) -> None:
        super().__init__(one)
        self.other = other

    def __reduce__(self) -> Any:
        return Reduced, (self.args[0], self.other)


class Slotted(Exception):
    __slots__ = ("code", "never")

    def __init__(self, code: int) -> None:
        super().__init__("slotted")
        self.code = code


@dataclasses.dataclass
class Data(Exception):
    name: str
    when: datetime


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frozen(Exception):
    name: str


class Item(msgspec.Struct):
    sku: str
    price: Decimal


class Model(pydantic.BaseModel):
    sku: str


class Typed(Exception):
    item: Item
    model: Model
    parts: tuple[int, ...]

    def __init__(self, item: Item, model: Model) -> None:
        super().__init__("annotated")
        self.item, self.model, self.parts = item, model, (1, 2)


class Away(OSError):
    def __init__(self, host: str) -> None:
        super().__init__(111, f"{host} refused")
        self.host = host


class Asked(OSError):
    """With the constructor of OSError."""


class Unread(UnicodeDecodeError):
    pass


class Lacking(KeyError):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Lazy(ImportError):
    pass


class Mixed(NotFound, LookupError):
    pass


class Many(ExceptionGroup[Exception]):
    pass


def late() -> Exception:
    error = NotFound("A1")
    error.depth = (1, {"two": {3}})  # type: ignore[attr-defined]
    error.add_note("look below")
    return error


MANY: Any = (b"\x00", date(2030, 1, 1), UUID(int=5), timedelta(seconds=3), Decimal("1.0"), float("inf"))

ERRORS: list[Exception] = [
    NotFound("A1"),
    Missing("A1", left=2),
    Silent(7),
    Reduced("one", 2),
    Slotted(5),
    Data("n", datetime(2030, 1, 1, tzinfo=UTC)),
    Frozen(name="n"),
    Typed(Item("s", Decimal("1.50")), Model(sku="s")),
    Away("db"),
    Asked(2, "no such file", "/tmp/x"),
    Unread("utf-8", b"\xff", 0, 1, "bad"),
    Lacking("key"),
    Lazy("no module", name="mod", path="/p"),
    Mixed("A1"),
    late(),
    NotFound(MANY),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_has_the_same_text_arguments_and_attributes(error: Exception) -> None:
    back = there_and_back(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert back.__dict__ == error.__dict__
    for name in ("code", "errno", "strerror", "filename", "start", "reason", "object", "name", "path"):
        assert getattr(back, name, None) == getattr(error, name, None)
    assert isinstance(back.__cause__, HandlerError)


def test_a_group_has_its_message_and_its_exceptions() -> None:
    back = there_and_back(Many("both", [ValueError("v", 1), NotFound("A1")]))
    assert type(back) is Many
    assert back.message == "both"
    assert [type(each) for each in back.exceptions] == [ValueError, Exception]
    assert back.exceptions[0].args == ("v", 1)
    assert str(back.exceptions[1]) == "NotFound: no article A1"


def test_what_cannot_be_carried_is_left_out_and_the_rest_arrives() -> None:
    error = NotFound("A1")
    error.lock = object()  # type: ignore[attr-defined]
    error.long = "x" * 20_000  # type: ignore[attr-defined]
    error.broken = "\ud800"  # type: ignore[attr-defined]
    error.last = 1  # type: ignore[attr-defined]
    back = there_and_back(error)
    assert back.__dict__ == {"sku": "A1", "last": 1}


def test_an_argument_that_cannot_be_carried_gives_way_to_the_text() -> None:
    assert there_and_back(NotFound("A1"), Exception).args == ("no article A1",)
    error = Exception("a", object())
    assert there_and_back(error).args == (str(error),)


def test_it_may_be_declared_by_a_class_that_it_inherits_from() -> None:
    back = there_and_back(Mixed("A1"), NotFound)
    assert type(back) is NotFound
    assert (str(back), back.sku) == ("no article A1", "A1")


def test_a_record_of_an_older_release_is_read_and_older_releases_read_ours() -> None:
    record = msgspec.json.decode(describe(Silent(7), attempts=1, declared=[Silent]))
    assert record["args"] == [7], "what older releases construct it from"
    del record["carried"]
    back = revive("failed", msgspec.json.encode(record).decode(), event="e", job_id="j", declared=[Silent])
    assert str(back) == "code 7"


class NeverAgain(Exception):
    made = 0

    def __init__(self) -> None:
        NeverAgain.made += 1
        super().__init__("once")


def test_no_constructor_is_called() -> None:
    back = there_and_back(NeverAgain())
    assert (str(back), NeverAgain.made) == ("once", 1)


def test_attributes_with_sensitive_values_are_left_out() -> None:
    error: Any = NotFound("A1")
    error.card, error.inside, error.number = "4111-1111", {"cards": ["4111-1111"]}, 41111111
    error.add_note("card 4111-1111 was refused")
    hidden = HiddenTexts(sensitive=("4111-1111", "41111111"))
    back = there_and_back(error, hidden=hidden)
    assert back.__dict__ == {"sku": "A1", "__notes__": ["card ••• was refused"]}
    text = without(describe(error, attempts=1, declared=[NotFound]), hidden)
    assert "1111" not in text
    group = there_and_back(Many("both", [ValueError("4111-1111")]), hidden=hidden)
    assert "1111" not in repr(group)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=20)
    | st.dates()
    | st.datetimes(timezones=st.just(UTC)).map(lambda each: each.replace(fold=0))
    | st.uuids()
    | st.decimals(allow_nan=False, allow_infinity=False, places=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(string.ascii_letters + "$", max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    passed=st.lists(plain, max_size=3),
    attributes=st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), plain, max_size=4),
    base=st.sampled_from([Exception, ValueError, KeyError, OSError, RuntimeError]),
)
def test_any_constructor(passed: list[Any], attributes: dict[str, Any], base: type[Exception]) -> None:
    def construct(self: Any, *, given_: Any) -> None:
        base.__init__(self, *given_[0])
        for name, value in given_[1].items():
            object.__setattr__(self, f"own_{name}", value)

    kind: Any = type("Own", (base,), {"__init__": construct, "__module__": __name__})
    error = kind(given_=(passed, attributes))
    back = there_and_back(error)
    assert type(back) is kind
    assert back.args == error.args
    assert str(back) == str(error)
    assert back.__dict__ == error.__dict__
