"""Limits as values: what is refused, and what is sent."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import DefinitionError, Event, Limit


@pytest.mark.parametrize("name", ["at_once", "each"])
@pytest.mark.parametrize("count", [0, -1, True, 1.5, "3", 2**31])
def test_a_number_at_once_is_positive(name: str, count: Any) -> None:
    with pytest.raises(DefinitionError, match=f"{name} to be a positive integer, got: "):
        Limit(**{name: count})


def test_what_bounds_each_key_needs_the_function_that_says_which() -> None:
    for given in ({"each": 5}, {"each_rate": "5/1s"}):
        with pytest.raises(
            DefinitionError, match=rf"limit of event 'placed' has {next(iter(given))} and no by"
        ):
            Event("placed", limit=Limit(**given))  # type: ignore[arg-type]
    with pytest.raises(
        DefinitionError, match="expected by to be a plain function of the payload, got: 'tenant'"
    ):
        Limit(by="tenant")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="expected each_rate to be a number and a duration"):
        Limit(each_rate="x")


@pytest.mark.parametrize(
    "rate", [
        "100", "100/", "/1s", "x/1s", "1.5/1s", "-1/1s", "100/1parsec", "100/1s/1m", ["5/1s", 7], 7, b"5/1s",
        "²/1s", None,
    ]
)  # fmt: skip
def test_a_rate_that_cannot_be_read_is_named(rate: Any) -> None:
    with pytest.raises(DefinitionError, match=r"expected rate to be .*got: "):
        Limit(rate=rate)


@pytest.mark.parametrize("rate", ["0/1s", f"{2**31}/1s"])
def test_a_rate_allows_something(rate: str) -> None:
    with pytest.raises(DefinitionError, match="allow a positive number, got: "):
        Limit(rate=rate)


@pytest.mark.parametrize("rate", ["1/50ms", "1/400d", "1/0s"])
def test_a_window_has_a_length_that_can_be_kept(rate: str) -> None:
    with pytest.raises(DefinitionError, match=f"window from 0.1 s to 366 days, got: '{rate}'"):
        Limit(rate=rate)


def test_rates_that_contradict_each_other_are_named() -> None:
    with pytest.raises(DefinitionError, match="different lengths, got: 5/1s and 7/1s"):
        Limit(rate=["5/1s", "7/1000ms"])
    for longer in ("6000/1m", "9000/60s"):
        with pytest.raises(DefinitionError, match=r"00/1m can never hold anything back.*lower it"):
            Limit(rate=[longer, "100/1s"])
    with pytest.raises(DefinitionError, match="at most 8 rates"):
        Limit(rate=[f"{n}/{n}s" for n in range(100, 109)])
    assert Limit(rate=["100/1s", "5999/1m"]).rate == ("100/1s", "5999/1m")
    assert Limit(rate=["100/1s", "150/1.5s"]).rate, "150 of 200"
    assert Limit(rate=["100/1s", "50/1m"]).rate


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(
        DefinitionError, match="expected a Limit to have at_once, rate, by, each or each_rate"
    ):
        Limit()
    with pytest.raises(DefinitionError, match=r"to be a Limit, such as Limit\(at_once=20\), got: 5"):
        Event("placed", limit=5)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit(at_once=20), '{"at_once":20}'),
        (Limit(rate="100/s"), '{"rates":[[100,1000]]}'),
        (Limit(by=str, each=5, each_rate="9/1m"), '{"each":5,"each_rates":[[9,60000]]}'),
        (Limit(at_once=3, rate=["50/1m", " 100 / 1 s "]), '{"at_once":3,"rates":[[100,1000],[50,60000]]}'),
    ],
)
def test_equal_limits_are_sent_as_equal_texts_and_come_back(limit: Limit, text: str) -> None:
    assert limit.to_wire() == text
    assert Limit.from_wire(text).to_wire() == text
    assert Limit(by=str).to_wire() == "", "turns alone"
    assert Limit(by=str, rate="5/1s", each_rate="10/1.5s").each_rate, "10 may start within 1.5 s"


@pytest.mark.parametrize("text", ["", "7", '{"at_once":-1}', '{"at_once":"x"}', '{"rates":[[0,1]]}', "{}"])
def test_a_text_that_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError):
        Limit.from_wire(text)


async def _key_of(payload: Any) -> str:
    return "x"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"by": _key_of}, "expected by to be a plain function of the payload, got: <function _key_of"),
        ({"by": str, "at_once": 5, "each": 6}, "each=6 can never be reached, because at_once=5"),
        ({"by": str, "rate": "5/1s", "each_rate": "6/1s"}, "each_rate 6/1s can never be reached.* rate 5/1s"),
        ({"by": str, "rate": "5/1s", "each_rate": "301/1m"}, "each_rate 301/1m can never.* rate 5/1s"),
        ({"by": str, "rate": "5/1m", "each_rate": "6/1s"}, "each_rate 6/1s can never.* rate 5/1m"),
        ({"by": str, "each_rate": "0/1s"}, "expected each_rate to allow a positive number, got: '0/1s'"),
        (
            {"by": str, "each_rate": ["5/1s", "9/1s"]},
            "rates of each_rate .*different lengths, got: 5/1s and 9/1s",
        ),
    ],
)
def test_what_each_key_may_do_is_checked_with_its_values(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Limit(**given)
