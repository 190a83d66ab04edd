"""The time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from eventbus.clock import Clock, SystemClock, to_unix_ms
from eventbus.errors import DefinitionError


def test_the_system_clock_is_the_wall_clock_and_the_monotonic_one() -> None:
    clock: Clock = SystemClock()
    before, start = time.time(), time.monotonic()
    assert before <= clock.now() <= time.time()
    assert start <= clock.monotonic() <= time.monotonic()


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
