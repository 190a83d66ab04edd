"""Which queues a worker asks next."""

from __future__ import annotations

from collections import defaultdict

import pytest

from eventbus.engine.agenda import Agenda


@pytest.fixture
def quota() -> defaultdict[str, int]:
    """Free slots of each queue; 1 unless the test says otherwise."""
    return defaultdict(lambda: 1)


@pytest.fixture
def agenda(quota: defaultdict[str, int]) -> Agenda:
    return Agenda(quota.__getitem__)


def test_nothing_is_chosen_that_was_not_noted(agenda: Agenda) -> None:
    assert agenda.choose(10) == []
    agenda.note(["a", "b", "a"])
    assert agenda.choose(10) == ["a", "b"]
    assert agenda.choose(1) == ["a"]


def test_queues_that_gave_go_to_the_end_and_empty_ones_leave(agenda: Agenda) -> None:
    agenda.note("abcd")
    agenda.ask("ab")
    agenda.answered("ab", ["a"], "a")
    assert agenda.choose(10) == ["c", "d", "a"]


def test_a_queue_asked_in_vain_keeps_its_place(agenda: Agenda) -> None:
    agenda.note("abcd")
    agenda.ask("abc")
    agenda.answered("abc", "abc", "a")
    assert agenda.choose(10) == ["b", "c", "d", "a"]


def test_a_call_that_failed_leaves_its_queues_to_be_asked_again(agenda: Agenda) -> None:
    agenda.note("a")
    agenda.ask("a")
    agenda.unanswered("a")
    assert agenda.choose(10) == ["a"]


def test_all_are_asked_in_turn(agenda: Agenda) -> None:
    names = [f"q{n}" for n in range(10)]
    agenda.note(names)
    asked: list[str] = []
    for _ in range(10):
        chosen = agenda.choose(3)
        asked += chosen
        agenda.ask(chosen)
        agenda.answered(chosen, chosen, chosen)
    assert asked == (names * 3)[:30]


def test_what_was_noted_while_a_queue_was_asked_counts_more_than_the_answer(agenda: Agenda) -> None:
    agenda.note("a")
    agenda.ask("a")
    agenda.note("a")
    agenda.answered("a", [], [])
    assert agenda.choose(10) == ["a"]
    agenda.ask("a")
    agenda.answered("a", [], [])
    assert agenda.choose(10) == []


def test_a_queue_being_asked_is_asked_by_a_second_call_only_for_its_backlog(agenda: Agenda) -> None:
    agenda.note("abc")
    agenda.ask("a")
    agenda.answered("a", ["a"], "a")
    agenda.ask("ab")
    assert agenda.choose(10) == ["c", "a"]


def test_a_queue_without_a_slot_is_left_out_and_its_wake_is_owed(
    agenda: Agenda, quota: defaultdict[str, int]
) -> None:
    quota["a"] = 0
    agenda.note("ab")
    assert agenda.choose(10) == ["b"]
    assert agenda.has_owed
    assert agenda.take_owed() == ["a"]
    assert not agenda.has_owed
    quota["a"] = 1
    assert agenda.choose(10) == ["a", "b"]


def test_what_this_worker_can_run_itself_by_now_is_not_owed(
    agenda: Agenda, quota: defaultdict[str, int]
) -> None:
    quota["a"] = quota["b"] = 0
    agenda.note("ab")
    quota["a"] = 1
    agenda.ask("b")
    agenda.answered("b", [], [])
    assert agenda.take_owed() == []


def test_all_that_is_known_is_handed_over_once(agenda: Agenda, quota: defaultdict[str, int]) -> None:
    quota["b"] = 0
    agenda.note("abc")
    assert sorted(agenda.take_all()) == ["a", "b", "c"]
    assert agenda.take_all() == []
    assert agenda.choose(10) == []


def test_no_more_backlogs_are_chosen_than_give_what_is_wanted(
    agenda: Agenda, quota: defaultdict[str, int]
) -> None:
    quota.update(dict.fromkeys("abcd", 10))
    agenda.note("abcd")
    assert agenda.choose(10, want=1) == ["a", "b"]  # guesses: there may be one job in each
    agenda.ask("abcd")
    agenda.answered("abcd", "abcd", "abcd")
    assert agenda.choose(10, want=5) == ["a"]
    assert agenda.choose(10, want=15) == ["a", "b", "c"]
