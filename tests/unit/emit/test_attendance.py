"""When an emitter's floor may rise, and when it says its name: by the clock of the test, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.emit.attendance import Attendance
from eventbus.emit.wait_list import EARLY_LIMIT, WaitList
from eventbus.model import clock
from eventbus.store.scripting.script_rows import Outcome


class _Time:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Time:
    return _Time(monkeypatch)


@pytest.fixture
def waits(time: _Time) -> WaitList:  # the wait list looks at the clock as well
    return WaitList()


@pytest.fixture
def attendance(waits: WaitList) -> Attendance:
    attendance = Attendance("em", waits)
    attendance.note_whole()
    attendance.end_look(attendance.begin_look())
    return attendance


def _mark(attendance: Attendance, time: int) -> int:
    """One call makes a mark, and reading comes to it."""
    mark = attendance.next_mark()
    assert isinstance(mark, int)
    attendance.note_made(time)
    attendance.note_read(mark, 0)
    return mark


def test_adds_say_the_name_until_it_is_known_and_then_each_second(
    time: _Time, attendance: Attendance
) -> None:
    assert [attendance.say() for _ in range(2)] == ["em:1", "em:1"]
    attendance.confirm("em:0")
    assert attendance.say() == "em:1", "another attendance was known"
    attendance.confirm("em:1")
    assert [attendance.say() for _ in range(2)] == ["", ""]
    time.now += 1.01
    assert [attendance.say() for _ in range(2)] == ["em:1", ""]
    assert attendance.say_always() == "em:1"


def test_a_gap_has_the_name_said_again(attendance: Attendance) -> None:
    attendance.say()
    attendance.confirm("em:1")
    attendance.note_gap()
    assert attendance.say() == "em:1"


def test_it_leaves_after_a_second_in_which_nothing_was_awaited(
    time: _Time, attendance: Attendance, waits: WaitList
) -> None:
    emission: Any = object()
    number = attendance.begin_call()
    attendance.say()
    time.now += 5
    assert attendance.leave() == "", "an answer is owed"
    attendance.end_call(number)
    waits.jobs["a"] = [emission]
    time.now += 5
    assert attendance.leave() == "", "an outcome is awaited"
    del waits.jobs["a"]
    time.now += 0.9
    assert attendance.leave() == ""
    time.now += 0.2
    assert attendance.leave() == "em:1"
    assert (attendance.leave(), attendance.quit()) == ("", "")
    assert attendance.say() == "em:2", "a late copy of its leaving does not meet this one"


def test_the_floor_rises_to_a_mark_that_was_made_and_read(attendance: Attendance) -> None:
    mark = attendance.next_mark()
    attendance.note_read(int(mark), 0)
    assert attendance.floor == "", "its time is not known yet"
    attendance.note_made(70)
    assert attendance.floor == 70
    again = attendance.next_mark()
    attendance.note_made(80)
    attendance.note_read(int(mark), 0)
    assert (attendance.floor, attendance.next_mark()) == ("", ""), "the new mark is not read yet"
    attendance.note_read(int(again), 0)
    assert attendance.floor == 80


def test_a_mark_whose_call_was_not_answered_does_not_count(attendance: Attendance) -> None:
    lost = attendance.next_mark()
    again = attendance.next_mark()
    attendance.note_made(80)
    attendance.note_read(int(lost), 0)
    assert attendance.floor == ""
    attendance.note_read(int(again), 0)
    assert attendance.floor == 80


def test_the_floor_waits_for_large_outcomes(attendance: Attendance, waits: WaitList) -> None:
    waits.jobs["a"] = [object()]  # pyright: ignore[reportArgumentType]
    waits.settle(Outcome("a", "completed", None))
    _mark(attendance, 70)
    waits.settle(Outcome("a", "completed", None))  # behind the mark
    assert attendance.floor == ""
    waits.looked = 1
    assert attendance.floor == 70


def test_the_floor_waits_for_a_look_at_jobs_whose_end_is_not_told(
    attendance: Attendance, waits: WaitList
) -> None:
    early = attendance.made_mark
    waits.unlisted.add("a")
    mark = _mark(attendance, 70)
    attendance.note_asked(early)
    assert attendance.floor == "", "that look began before the mark"
    attendance.note_asked(mark)
    assert attendance.floor == 70


def test_the_floor_waits_for_adds_that_may_be_older_than_the_mark(attendance: Attendance) -> None:
    first = attendance.begin_call()
    mark = attendance.next_mark()
    second = (
        attendance.begin_call()
    )  # sent before the mark's call was answered, so perhaps carried out before it
    attendance.note_made(70)
    attendance.begin_call()
    attendance.note_read(int(mark), 0)
    assert attendance.floor == ""
    attendance.end_call(first)
    assert attendance.floor == ""
    attendance.end_call(second)
    assert attendance.floor == 70, "the third is younger"


def test_after_a_gap_the_floor_waits_for_a_look_and_a_new_mark(attendance: Attendance) -> None:
    _mark(attendance, 70)
    owed = attendance.begin_call()
    attendance.note_gap()
    assert (attendance.floor, attendance.next_mark()) == ("", "")
    assert attendance.begin_look() == 0, "the stream may still be gone"
    attendance.note_whole()
    assert attendance.begin_look() == 0, "what this add brought cannot be looked up yet"
    attendance.end_call(owed)
    young = attendance.begin_call()  # told in the new stream
    gap = attendance.begin_look()
    assert gap
    attendance.end_look(gap)
    assert attendance.floor == "", "the old mark may have been lost"
    attendance.end_call(young)
    _mark(attendance, 90)
    assert attendance.floor == 90


def test_a_gap_during_a_look_is_not_closed_by_it(attendance: Attendance) -> None:
    attendance.note_gap()
    attendance.note_whole()
    gap = attendance.begin_look()
    attendance.note_gap()
    attendance.end_look(gap)
    assert attendance.has_gap


def test_a_read_that_meets_nothing_though_a_mark_was_made_is_a_gap(attendance: Attendance) -> None:
    attendance.note_nothing()
    assert not attendance.has_gap
    attendance.next_mark()
    attendance.note_nothing()
    assert not attendance.has_gap, "it may not be there yet"
    attendance.note_made(70)
    attendance.note_nothing()
    assert attendance.has_gap


def test_many_outcomes_make_a_call_due_at_once(attendance: Attendance) -> None:
    attendance.note_read(0, 999)
    assert not attendance.is_due
    attendance.note_read(0, 1)
    assert not attendance.is_due, "nobody awaits them"
    attendance.say()
    assert attendance.is_due, "there is no mark yet"
    mark = attendance.next_mark()
    attendance.note_made(70)
    attendance.note_read(0, 1000)
    assert not attendance.is_due, "the mark is not read yet"
    attendance.note_read(int(mark), 0)
    assert attendance.is_due


def test_an_outcome_that_was_not_held_back_is_looked_up_when_its_answer_comes(
    time: _Time, attendance: Attendance, waits: WaitList
) -> None:
    """`early-dropped`"""
    number = attendance.begin_call()
    waits.expect_answers(1)
    since = time.now
    waits.settle(Outcome("first", "completed", "1"))
    for n in range(EARLY_LIMIT):
        waits.settle(Outcome(f"other{n}", "completed", "1"))
    mark = attendance.next_mark()
    attendance.note_made(70)
    attendance.note_read(int(mark), 0)
    assert attendance.floor == "", "the answer is owed"
    joined: Any = _Emission()
    waits.join(joined, "first", "open", "", since=since)
    attendance.end_call(number)
    assert waits.unread == ["first"]
    assert attendance.floor == "", "it may have ended before the mark"
    waits.looked = waits.announced
    assert attendance.floor == 70


class _Emission:
    """An emission of a key."""

    job_id = "own"
    is_enqueued = False

    def mark_enqueued(self) -> None:
        self.is_enqueued = True

    def done(self) -> bool:
        return False
