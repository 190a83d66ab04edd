"""What becomes of a schedule that is due, by the plan, the slot and the server's time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from eventbus.errors import DefinitionError
from eventbus.model.message import decode_message
from eventbus.schedules.firing import make_row
from eventbus.schedules.plan import Plan, check_id, decode_plan
from eventbus.schedules.timetable import Timetable
from eventbus.store.scripting.script_rows import DueRow

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_FIRST = 1_790_000_040_000


def _plan(**given: Any) -> Plan:
    table = given.pop("table", Timetable(every=_MINUTE, anchor=_FIRST))
    return Plan(event="tick", queue="event.tick", table=table, payload=msgspec.Raw(b'{"a":1}'), **given)


def _due(held: str = "") -> DueRow:
    return DueRow("s", "7", str(_FIRST), "", held, str(_FIRST), "")


def test_a_slot_in_time_fires_and_the_next_one_follows_from_it() -> None:
    row = make_row(_due(), _plan(), _FIRST + 40)
    assert (row.fire, row.next, row.due, row.missed, row.late) == (
        _FIRST,
        _FIRST + _MINUTE,
        _FIRST + _MINUTE,
        0,
        0,
    )
    assert (row.job, row.key) == (f"s~7.{_FIRST}", f"sched%3As%3A{_FIRST}")
    message = decode_message(row.body)
    assert bytes(message.payload) == b'{"a":1}'
    assert message.meta == {"schedule": "s", "slot": _FIRST}


def test_once_fires_the_latest_missed_slot_and_counts_the_others() -> None:
    row = make_row(_due(), _plan(), _FIRST + 10 * _MINUTE + 5)
    assert (row.fire, row.next, row.missed) == (_FIRST + 10 * _MINUTE, _FIRST + 11 * _MINUTE, 10)


def test_once_fires_nothing_that_is_older_than_the_window() -> None:
    plan = _plan(table=Timetable(every=_DAY, anchor=_FIRST), window=_HOUR)
    row = make_row(_due(), plan, _FIRST + 2 * _DAY + 2 * _HOUR)
    assert (row.fire, row.next, row.missed) == ("", _FIRST + 3 * _DAY, 2)
    assert make_row(_due(), plan, _FIRST + 2 * _DAY + _HOUR).fire == _FIRST + 2 * _DAY


def test_skip_fires_only_what_is_in_time() -> None:
    plan = _plan(table=Timetable(every=_DAY, anchor=_FIRST), catch_up="skip")
    assert make_row(_due(), plan, _FIRST + 59_000).fire == _FIRST
    assert make_row(_due(), plan, _FIRST + 61_000).fire == ""


def test_all_fires_one_after_the_other() -> None:
    plan = _plan(catch_up="all")
    row = make_row(_due(), plan, _FIRST + 3 * _MINUTE)
    assert (row.fire, row.next, row.missed, row.late) == (_FIRST, _FIRST + _MINUTE, 0, 1)
    assert make_row(_due(), plan, _FIRST + 5).late == 0
    old = make_row(_due(), _plan(catch_up="all", window=2 * _MINUTE), _FIRST + 10 * _MINUTE)
    assert (old.fire, old.missed) == (_FIRST + 8 * _MINUTE, 8)


def test_all_fires_the_same_slot_that_waited_for_the_last_job() -> None:
    row = make_row(_due(held=str(_FIRST)), _plan(catch_up="all", overlap="queue"), _FIRST + 3 * _MINUTE)
    assert (row.fire, row.next, row.missed) == (_FIRST, _FIRST + _MINUTE, 0)


def test_all_passes_over_the_oldest_of_more_than_a_thousand() -> None:
    row = make_row(_due(), _plan(catch_up="all", window=30 * _DAY), _FIRST + 3000 * _MINUTE)
    assert (row.fire, row.missed, row.next) == ("", 500, _FIRST + 501 * _MINUTE)


def test_a_slot_that_waited_for_the_last_job_is_the_latest_one() -> None:
    plan = _plan(catch_up="skip", overlap="queue")
    row = make_row(_due(held=str(_FIRST)), plan, _FIRST + 5 * _MINUTE + 59_000)
    assert (row.fire, row.missed) == (_FIRST + 5 * _MINUTE, 5)


def test_a_schedule_at_its_end_has_no_next_slot() -> None:
    plan = _plan(table=Timetable(every=_MINUTE, anchor=_FIRST, end=_FIRST + 1))
    row = make_row(_due(), plan, _FIRST + 5)
    assert (row.fire, row.next, row.due) == (_FIRST, "", "")


def test_a_plan_comes_back_as_it_was_stored() -> None:
    plan = _plan(overlap="queue", catch_up="all", limit=3, on_failure="pause")
    again = decode_plan(plan.encode())
    assert again.digest() == plan.digest()
    assert (again.overlap, again.table) == (plan.overlap, plan.table)


@pytest.mark.parametrize(
    ("field", "value"),
    [("overlap", "maybe"), ("catch_up", "twice"), ("on_failure", "ignore"), ("limit", -1), ("limit", True)],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=rf"expected {field} to be .*{value!r}"):
        _plan(**{field: value}).check()


@pytest.mark.parametrize("name", ["", "a b", "a@b", "a/b", "a!1", "~x", "x" * 129, None, "é"])
def test_an_id_that_could_break_a_key_is_refused(name: Any) -> None:
    with pytest.raises(DefinitionError, match="expected id"):
        check_id(name)
