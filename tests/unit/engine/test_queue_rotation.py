"""The order in which a worker polls its queues."""

from __future__ import annotations

from collections import defaultdict

import pytest

from eventbus.engine.claiming.queue_rotation import QueueRotation


@pytest.fixture
def quota() -> defaultdict[str, int]:
    """Free slots of each queue; 1 unless the test says otherwise."""
    return defaultdict(lambda: 1)


@pytest.fixture
def rotation(quota: defaultdict[str, int]) -> QueueRotation:
    return QueueRotation(quota.__getitem__)


def test_nothing_is_chosen_that_was_not_noted(rotation: QueueRotation) -> None:
    assert rotation.choose(10) == []
    rotation.note(["a", "b", "a"])
    assert rotation.choose(10) == ["a", "b"]
    assert rotation.choose(1) == ["a"]


def test_queues_that_gave_go_to_the_end_and_empty_ones_leave(rotation: QueueRotation) -> None:
    rotation.note("abcd")
    rotation.ask("ab")
    rotation.answered("ab", ["a"], "a")
    assert rotation.choose(10) == ["c", "d", "a"]


def test_a_queue_asked_in_vain_keeps_its_place(rotation: QueueRotation) -> None:
    rotation.note("abcd")
    rotation.ask("abc")
    rotation.answered("abc", "abc", "a")
    assert rotation.choose(10) == ["b", "c", "d", "a"]


def test_a_call_that_failed_leaves_its_queues_to_be_asked_again(rotation: QueueRotation) -> None:
    rotation.note("a")
    rotation.ask("a")
    rotation.unanswered("a")
    assert rotation.choose(10) == ["a"]


def test_all_are_asked_in_turn(rotation: QueueRotation) -> None:
    names = [f"q{n}" for n in range(10)]
    rotation.note(names)
    asked: list[str] = []
    for _ in range(10):
        chosen = rotation.choose(3)
        asked += chosen
        rotation.ask(chosen)
        rotation.answered(chosen, chosen, chosen)
    assert asked == (names * 3)[:30]


def test_what_was_noted_while_a_queue_was_asked_counts_more_than_the_answer(rotation: QueueRotation) -> None:
    rotation.note("a")
    rotation.ask("a")
    rotation.note("a")
    rotation.answered("a", [], [])
    assert rotation.choose(10) == ["a"]
    rotation.ask("a")
    rotation.answered("a", [], [])
    assert rotation.choose(10) == []


def test_a_queue_being_asked_is_asked_by_a_second_call_only_for_its_backlog(rotation: QueueRotation) -> None:
    rotation.note("abc")
    rotation.ask("a")
    rotation.answered("a", ["a"], "a")
    rotation.ask("ab")
    assert rotation.choose(10) == ["c", "a"]


def test_a_queue_without_a_slot_is_left_out_and_its_wake_is_owed(
    rotation: QueueRotation, quota: defaultdict[str, int]
) -> None:
    quota["a"] = 0
    rotation.note("ab")
    assert rotation.choose(10) == ["b"]
    assert rotation.has_owed
    assert rotation.take_owed() == ["a"]
    assert not rotation.has_owed
    quota["a"] = 1
    assert rotation.choose(10) == ["a", "b"]


def test_what_this_worker_can_run_itself_by_now_is_not_owed(
    rotation: QueueRotation, quota: defaultdict[str, int]
) -> None:
    quota["a"] = quota["b"] = 0
    rotation.note("ab")
    quota["a"] = 1
    rotation.ask("b")
    rotation.answered("b", [], [])
    assert rotation.take_owed() == []


def test_all_that_is_known_is_handed_over_once(rotation: QueueRotation, quota: defaultdict[str, int]) -> None:
    quota["b"] = 0
    rotation.note("abc")
    assert sorted(rotation.take_all()) == ["a", "b", "c"]
    assert rotation.take_all() == []
    assert rotation.choose(10) == []


def test_no_more_backlogs_are_chosen_than_give_what_is_wanted(
    rotation: QueueRotation, quota: defaultdict[str, int]
) -> None:
    quota.update(dict.fromkeys("abcd", 10))
    rotation.note("abcd")
    assert rotation.choose(10, want=1) == ["a", "b"]  # guesses: there may be one job in each
    rotation.ask("abcd")
    rotation.answered("abcd", "abcd", "abcd")
    assert rotation.choose(10, want=5) == ["a"]
    assert rotation.choose(10, want=15) == ["a", "b", "c"]
