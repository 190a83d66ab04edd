"""Slots of a worker whose jobs share them: what a turn may ask for, and how much of it counts."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from eventbus.engine.claiming.slots import Slots
from eventbus.store.scripting.script_rows import TurnQueue


class Sharing:
    """A consumer whose jobs share slots, ten by ten."""

    concurrency = 40
    follows = ()

    @property
    def gathering(self) -> Sharing:
        return self

    def slots_of(self, jobs: int) -> int:
        return -(-jobs // 10)

    def room_for(self, jobs: int, slots: int) -> int:
        return -jobs % 10 + 10 * max(0, slots)

    def hurry(self) -> None: ...

    def give_up(self, job: Any) -> None: ...


class Plain:
    concurrency = 5
    follows = ()


def _slots(most: int, **counts: int) -> Slots:
    executor: Any = SimpleNamespace(
        running=dict.fromkeys(range(sum(counts.values()))), counts=Counter(counts)
    )
    consumers: Any = {"shared": Sharing(), "plain": Plain(), "other": Plain()}
    slots = Slots(executor, consumers, most, is_open=lambda: True)
    for queue in consumers:
        slots.note_sharing(queue)
    return slots


def _row(queue: str, quota: int) -> TurnQueue:
    return TurnQueue(queue, quota, 0, 0, 0, 0, 0)


def test_jobs_that_share_slots_leave_the_others_free() -> None:
    assert _slots(10, shared=25, plain=2).free == 10 - 3 - 2
    assert _slots(10, plain=2).free == 8


def test_a_shared_slot_is_filled_though_no_other_is_free() -> None:
    slots = _slots(2, shared=4, plain=1)
    assert (slots.free, slots.want, slots.quota("plain")) == (0, 0, 0)
    assert slots.quota("shared") == 6
    assert slots.want_of(["shared"]) == 6
    full = _slots(2, shared=10, plain=1)
    assert (full.quota("shared"), full.want_of(["shared"])) == (0, 0)


def test_a_queue_whose_jobs_share_slots_is_asked_alone() -> None:
    slots = _slots(10)
    assert slots.apart(["shared", "plain", "other"]) == ["shared"]
    assert slots.apart(["plain", "shared", "other"]) == ["plain", "other"]
    assert slots.apart([]) == []
    assert slots.with_followers(["shared"], ["plain"]) == ["shared"]


def test_what_a_turn_asks_of_it_counts_as_slots() -> None:
    slots = _slots(10, shared=4)
    want = slots.want_of(["shared"])
    assert want == 36, "its concurrency"
    with slots.reserve(want, [_row("shared", want)]):
        assert slots.free == 10 - 4
        assert slots.quota("shared") == 0
        assert slots.quota("plain") == 5
    with slots.reserve(5, [_row("plain", 5), _row("shared", 0)]):
        assert slots.free == 10 - 1 - 5
    assert slots.free == 9


def test_a_closed_queue_and_a_closed_worker_take_nothing() -> None:
    slots = _slots(10, shared=4)
    slots.closed.add("shared")
    assert slots.quota("shared") == 0
    closed: Any = Slots(slots._executor, slots._consumers, 10, is_open=lambda: False)
    closed.note_sharing("shared")
    assert closed.quota("shared") == 0
