"""Cron in time zones, compared with a search minute by minute."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.errors import DefinitionError
from eventbus.schedules.cron import Cron
from eventbus.schedules.zone import find_zone, offset_at, to_local, to_ms

_ZONES = [
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca",
    "Asia/Kathmandu",
]  # fmt: skip
_EXPRESSIONS = [
    "30 2 * * *", "0 0 * * *", "15,45 1-3 * * *", "*/30 * * * *", "0 * * * *", "*/10 0-3 * * *",
    "5 */2 * * *", "30 1 * * sun", "0 12 1,15 * mon", "59 23 31 * *", "0 3 * 3,10 *",
]  # fmt: skip
_YEAR = 2026
_MINUTE = 60_000
_DAY = 86_400_000
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


@cache
def _values(field: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for term in field.split(","):
        part, _, step = term.partition("/")
        first, _, last = part.partition("-")
        first, last = (str(low), str(high)) if part == "*" else (first, last or first)
        ends = [_DAYS.index(each) if each in _DAYS else int(each) for each in (first, last)]
        found.update(range(ends[0], ends[1] + 1, int(step or 1)))
    return frozenset(found)


@cache
def _windows(zone_name: str) -> list[list[tuple[int, datetime]]]:
    """Each minute with its wall time, of the three days around each change of the clock, and around an end of
    a month.
    """
    zone = find_zone(zone_name)
    first = to_ms(datetime(_YEAR, 1, 1, tzinfo=UTC))
    days = [first + number * _DAY for number in range(366)]
    offsets = [offset_at(ms, zone) for ms in days]
    centres = [30, *(number for number in range(1, 366) if offsets[number] != offsets[number - 1])]
    return [
        [
            (ms, to_local(ms, zone).replace(tzinfo=None))
            for ms in range(days[at] - 2 * _DAY, days[at] + _DAY, _MINUTE)
        ]
        for at in centres
    ]


def _make_fits(expression: str) -> Callable[[datetime], bool]:
    minute, hour, day, month, weekday = expression.split()
    minutes, hours, months = _values(minute, 0, 59), _values(hour, 0, 23), _values(month, 1, 12)
    days, weekdays = _values(day, 1, 31), _values(weekday, 0, 6)
    combine = all if day.startswith("*") or weekday.startswith("*") else any

    def fits(wall: datetime) -> bool:
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        return combine((wall.day in days, wall.isoweekday() % 7 in weekdays))

    return fits


def _table(expression: str, minutes: list[tuple[int, datetime]]) -> list[int]:
    """Make the slots of a window by brute force."""
    fits = _make_fits(expression)
    if expression.startswith("*") or expression.split()[1].startswith("*"):
        return [ms for ms, wall in minutes if fits(wall)]
    first_time: dict[datetime, int] = {}
    for ms, wall in minutes:
        first_time.setdefault(wall, ms)
    slots: set[int] = set()
    wall, last = min(first_time), max(first_time)
    while wall <= last:
        if fits(wall):
            there = wall
            while there not in first_time and there <= last:
                there += timedelta(minutes=1)
            slots.update([first_time[there]] if there in first_time else [])
        wall += timedelta(minutes=1)
    return sorted(slots)


@pytest.mark.parametrize("zone", _ZONES)
@pytest.mark.parametrize("expression", _EXPRESSIONS)
def test_the_slots_around_each_change_of_the_clock_are_those_of_a_search_by_minutes(
    expression: str, zone: str
) -> None:
    cron = Cron(expression, find_zone(zone))
    for window in _windows(zone):
        slots: list[int] = []
        slot = cron.next_after(window[0][0] - 1)
        while slot is not None and slot <= window[-1][0]:
            slots.append(slot)
            slot = cron.next_after(slot)
        assert slots == _table(expression, window)


_FIELD = {
    "minute": st.sampled_from(["0", "30", "7,52", "*/20", "*", "10-12"]),
    "hour": st.sampled_from(["0", "1", "2", "1-3", "*", "*/3", "23"]),
    "day": st.sampled_from(["*", "1", "29-31", "*/4"]),
    "month": st.sampled_from(["*", "3", "4,10", "11"]),
    "weekday": st.sampled_from(["*", "sun", "mon-fri"]),
}


@settings(max_examples=40, deadline=None)
@given(st.tuples(*_FIELD.values()), st.sampled_from(_ZONES), st.integers(0, 9), st.floats(0, 1))
def test_the_next_slot_depends_on_the_time_alone(
    fields: tuple[str, ...], zone: str, window: int, where: float
) -> None:
    expression, windows = " ".join(fields), _windows(zone)
    expected = _table(expression, windows[window % len(windows)])
    cron = Cron(expression, find_zone(zone))
    if len(expected) < 2:
        return
    place = int(where * (len(expected) - 2))
    first, second = expected[place : place + 2]
    for ms in (first, first + 1, (first + second) // 2, second - _MINUTE // 2, second - 1):
        if ms >= first:
            assert cron.next_after(ms) == second


@pytest.mark.parametrize(
    ("expression", "day", "slots"),
    [
        ("0 30 2 * * *", 28, ["2026-03-28 02:30:00", "2026-03-29 03:00:00", "2026-03-30 02:30:00"]),
        ("15 30 2 * * *", 28, ["2026-03-28 02:30:15", "2026-03-29 03:00:15", "2026-03-30 02:30:15"]),
        ("0,30 59 1 29 3 *", 28, ["2026-03-29 01:59:00", "2026-03-29 01:59:30", "2027-03-29 01:59:00"]),
        ("*/20 * * * * *", 28, ["2026-03-28 00:00:20", "2026-03-28 00:00:40", "2026-03-28 00:01:00"]),
    ],
)
def test_seconds_choose_within_the_minutes_of_the_other_fields(
    expression: str, day: int, slots: list[str]
) -> None:
    zone = find_zone("Europe/Berlin")
    ms, found = to_ms(datetime(_YEAR, 3, day, tzinfo=zone)), list[str]()
    for _ in slots:
        following = Cron(expression, zone).next_after(ms)
        assert following is not None
        ms = following
        found.append(str(to_local(ms, zone).replace(tzinfo=None)))
    assert found == slots


@pytest.mark.parametrize(
    "name", ["@hourly", "@daily", "@Midnight", "@weekly", "@monthly", "@yearly", "@annually"]
)
def test_names_stand_for_expressions(name: str) -> None:
    assert Cron(name, find_zone("UTC")).next_after(0) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("61 * * * *", "minute"), ("0 24 * * *", "hour"), ("0 0 32 * *", "day-of-month"),
        ("0 0 * 13 *", "month"), ("0 0 * * 9", "day-of-week"), ("60 0 0 * * *", "second"),
        ("* * * *", "4 fields"), ("", "0 fields"), ("@often", "@hourly"),
        ("a" * 300, "200 characters"), ("0 0 30 2 *", "day-of-month"),
        ("0 0 */31 * 1#5", "without a time in 50 years"),
    ],
)  # fmt: skip
def test_an_expression_that_cannot_be_used_is_refused_with_its_text(text: str, reason: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Cron(text, find_zone("UTC"))
    assert reason in str(caught.value)
    assert repr(text[:20])[:-1] in str(caught.value)


@pytest.mark.parametrize(
    "name", ["Europe/Atlantis", "", "../etc/passwd", "/etc/localtime", "x\0y", "Ünknown"]
)
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="time zone"):
        find_zone(name)
