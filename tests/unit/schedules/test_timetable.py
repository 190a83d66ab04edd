from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.errors import DefinitionError
from eventbus.schedules.timetable import COUNTED, Timetable

_NOW = 1_790_000_000_000


def test_an_interval_counts_from_its_anchor() -> None:
    table = Timetable(every=10_000, anchor=_NOW)
    assert table.next_after(_NOW - 1) == _NOW
    assert table.next_after(_NOW) == _NOW + 10_000
    assert table.next_after(_NOW + 25_001) == _NOW + 30_000


def test_no_slot_is_before_the_start_or_after_the_end() -> None:
    table = Timetable(cron="0 * * * *", start=_NOW, end=_NOW + 7_200_000)
    first = table.next_after(0)
    assert first is not None
    assert _NOW <= first < _NOW + 3_600_000
    assert table.next_after(first + 3_600_000) is None


@given(st.integers(100, 10**9), st.integers(0, _NOW), st.integers(0, 10**12))
def test_the_latest_slot_of_an_interval_is_found_at_once(every: int, anchor: int, late: int) -> None:
    table = Timetable(every=every, anchor=anchor)
    slot = table.next_after(anchor + late)
    assert slot is not None
    last, count = table.latest(slot, slot + late)
    assert last <= slot + late < last + every
    assert (last - anchor) % every == 0
    assert count == min((last - slot) // every, COUNTED)


@given(
    st.sampled_from(["* * * * *", "*/10 * * * * *", "0 9 * * mon-fri", "30 2 * * *"]),
    st.integers(0, 20 * 86_400_000),
)
def test_the_latest_slot_of_an_expression_is_the_last_one_that_is_past(cron: str, late: int) -> None:
    table = Timetable(cron=cron, tz="Europe/Berlin")
    slot = table.next_after(_NOW)
    assert slot is not None
    last, count = table.latest(slot, slot + late)
    following = table.next_after(last)
    assert following is not None
    assert last <= slot + late < following
    assert (count == 0) == (last == slot)


def test_jitter_is_bounded_and_the_same_for_everybody() -> None:
    table = Timetable(every=60_000, jitter=30_000)
    dues = [table.due(slot, "sweep") - slot for slot in range(0, 600_000_000, 60_000)]
    assert 0 <= min(dues) < 300
    assert 29_700 < max(dues) <= 30_000
    assert table.due(60_000, "sweep") == Timetable(every=60_000, jitter=30_000).due(60_000, "sweep")
    assert [table.due(slot, "other") - slot for slot in range(0, 600_000_000, 60_000)] != dues
    assert Timetable(every=60_000).due(60_000, "sweep") == 60_000


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (Timetable(), "neither"),
        (Timetable(cron="* * * * *", every=1000), "both"),
        (Timetable(every=99), "100 ms"),
        (Timetable(every=1000, start=2, end=1), "end"),
        (Timetable(every=1000, tz="Moon"), "'Moon'"),
        (Timetable(cron="0 0 31 6 *"), "day-of-month"),
    ],
)
def test_a_timetable_without_slots_is_refused(table: Timetable, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        table.check()
