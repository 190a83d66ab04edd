"""Durations: every way to write one, and what is refused."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.errors import DefinitionError
from eventbus.model.durations import LONGEST, milliseconds, seconds, text_of_ms


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0),
        (5, 5.0),
        (0.25, 0.25),
        (timedelta(minutes=2), 120.0),
        ("250ms", 0.25),
        ("1.5 s", 1.5),
        (".5s", 0.5),
        ("30", 30.0),
        ("5 minutes", 300.0),
        ("1h30m", 5400.0),
        ("1 hour 30 min", 5400.0),
        ("1 day", 86_400.0),
        ("2 weeks", 1_209_600.0),
        ("  10 S ", 10.0),
    ],
)
def test_a_duration_is_read_as_seconds(value: Any, expected: float) -> None:
    assert seconds(value, setting="delay") == pytest.approx(expected)


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        timedelta(seconds=-1),
        "-5s",
        "--5s",
        math.nan,
        math.inf,
        10**400,
        -(10**400),
        True,
        None,
        b"5s",
        "",
        " ",
        "s",
        "-",
        "5 parsecs",
        "5 s s",
        "1h 1h",
        "1h30",
        "1,5s",
        "\N{ARABIC-INDIC DIGIT FIVE}s",
        "nan",
        "inf",
        "1e5",
        "9" * 5000 + "s",
        "101 years",
        LONGEST * 1.01,
    ],
)
def test_what_is_no_duration_is_refused_with_the_setting_and_the_value(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^expected reply_timeout to be .*, got: ") as caught:
        seconds(value, setting="reply_timeout")
    assert len(str(caught.value)) < 250


def test_a_negative_duration_is_told_the_limits() -> None:
    with pytest.raises(DefinitionError) as caught:
        seconds(-1, setting="delay")
    assert str(caught.value) == "expected delay to be from 0 s to 100 years, got: -1"


@given(st.floats(min_value=0, max_value=LONGEST))
def test_numbers_and_their_timedelta_are_the_same_duration(value: float) -> None:
    assert seconds(value, setting="x") == value
    assert seconds(timedelta(seconds=value), setting="x") == pytest.approx(value, abs=1e-6)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        result = seconds(text, setting="x")
    except DefinitionError:
        return
    assert 0 <= result <= LONGEST


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0), (0.0001, 1), ("1.5 s", 1500), (0.0014, 1), (1, 1000)]
)
def test_milliseconds_are_rounded_but_never_down_to_none(value: Any, expected: int) -> None:
    assert milliseconds(value, setting="x") == expected


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (1500, "1500ms"),
        (1000, "1s"),
        (90_000, "90s"),
        (3_600_000, "1h"),
        (30 * 86_400_000, "30d"),
    ],
)
def test_milliseconds_are_told_in_the_largest_unit_that_is_whole(ms: int, text: str) -> None:
    assert text_of_ms(ms) == text


@given(st.integers(min_value=0, max_value=round(LONGEST * 1000)))
def test_what_is_told_of_milliseconds_can_be_read_again(ms: int) -> None:
    assert milliseconds(text_of_ms(ms), setting="x") == ms
