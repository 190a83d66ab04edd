"""The order in which a stopped flow's steps are undone."""

from __future__ import annotations

from eventbus.lowlevel import TreeMember
from workflows.distributed.undo.spread_undo import _Done, _merged


def _entry(step: str, ended: int) -> _Done:
    member = TreeMember(f"w~0/1/{step}/0", "completed", "q", 0, 0, 1, 1, ended, "", "")
    return _Done(member, step, "")


def test_the_recorded_order_stays_also_where_times_tie_or_go_back() -> None:
    done = [_entry("a", 5), _entry("b", 5), _entry("c", 3)]
    assert [each.step for each in _merged(done, [])] == ["a", "b", "c"]


def test_what_did_not_complete_stands_where_its_end_belongs() -> None:
    done = [_entry("a", 1), _entry("b", 4), _entry("c", 9)]
    ended = [_entry("late", 12), _entry("middle", 4)]
    assert [each.step for each in _merged(done, ended)] == ["a", "b", "middle", "c", "late"]
