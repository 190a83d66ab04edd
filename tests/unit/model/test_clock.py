"""The time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from eventbus.cli.times import span
from eventbus.errors import DefinitionError
from eventbus.model import clock
from eventbus.model.clock import to_unix_ms
from eventbus.settings.keywords import emit_options
from eventbus.settings.settings import Settings
from eventbus.settings.terms import read_due
from eventbus.store.connection.availability import Availability

_NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


class ManualClock:
    """Stands in for both clocks until the test is over; `advance` moves them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(clock, "now", lambda: _NEW_YEAR + self.seconds)
        monkeypatch.setattr(clock, "monotonic", lambda: self.seconds)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def manual(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    return ManualClock(monkeypatch)


def test_the_clock_is_the_wall_clock_and_the_monotonic_one() -> None:
    before, start = time.time(), time.monotonic()
    assert before <= clock.now() <= time.time()
    assert start <= clock.monotonic() <= time.monotonic()


def test_the_time_until_now_follows_the_clock(manual: ManualClock) -> None:
    began = int(_NEW_YEAR * 1000)
    assert span(began, 0) == "0.00 s"
    manual.advance(90.5)
    assert span(began, 0) == "90.50 s"
    manual.advance(3600)
    assert span(began, 0) == "1 h 1 min"


def test_an_outage_is_as_long_as_the_clock_says(manual: ManualClock, logs: list[dict[str, Any]]) -> None:
    availability = Availability("somewhere")
    availability.note_failure(OSError("gone"))
    manual.advance(42)
    availability.note_answer()
    assert [entry.get("away") for entry in logs] == [None, 42.0]


def test_a_deadline_begins_now(manual: ManualClock) -> None:
    settings = Settings(url="memory:")
    manual.advance(100)
    assert settings.deadline(5) == 105
    manual.advance(2)
    assert settings.deadline(5) == 107


def test_an_emission_for_a_time_of_the_day_waits_for_that_time(manual: ManualClock) -> None:
    at = datetime.fromtimestamp(_NEW_YEAR + 60, UTC)
    assert read_due(emit_options({"at": at})) == ("", int((_NEW_YEAR + 60) * 1000), 60.0)
    manual.advance(50)
    assert read_due(emit_options({"at": at}))[2] == 10.0
    manual.advance(50)
    assert read_due(emit_options({"at": at}))[2] == 0.0


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC), 1000),
        (datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))), -3_600_000),
        (datetime(2024, 2, 29, 12, 30, 0, 123_456, tzinfo=UTC), 1_709_209_800_123),
    ],
)
def test_a_datetime_with_a_timezone_is_an_instant(when: datetime, expected: int) -> None:
    assert to_unix_ms(when) == expected


class _NoOffset(tzinfo):
    def utcoffset(self, dt: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    "when", [datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=_NoOffset()), None, 5, "2024-01-01"]
)
def test_anything_without_a_timezone_is_refused(when: Any) -> None:
    with pytest.raises(DefinitionError, match=r"expected a datetime with a timezone, got: .*; add one"):
        to_unix_ms(when)
