"""Many timers on one timer of the event loop, whose clock the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from eventbus.runtime.timers import TimerWheel


class FakeLoop:
    """As much of an event loop as deadlines need; `move` passes time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []
        self.made = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any, *, context: Any) -> FakeTimer:
        self.made += 1
        timer = FakeTimer(self, when, call)
        self.timers.append(timer)
        return timer

    def move(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [each for each in self.timers if each.when <= end]:
            first = min(due, key=lambda each: each.when)
            self.timers.remove(first)
            self.now = max(self.now, first.when)
            first.call()
        self.now = end


class FakeTimer:
    def __init__(self, loop: FakeLoop, when: float, call: Any) -> None:
        self.loop, self.when, self.call = loop, when, call

    def cancel(self) -> None:
        if self in self.loop.timers:
            self.loop.timers.remove(self)


class Target:
    """Notes when its deadline was met."""

    def __init__(self, loop: FakeLoop) -> None:
        self.loop = loop
        self.met: list[float] = []

    def on_deadline(self) -> None:
        self.met.append(self.loop.now)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLoop]:
    fake = FakeLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: fake)
    yield fake
    monkeypatch.undo()


def test_each_is_met_once_not_before_its_time_and_little_after(loop: FakeLoop) -> None:
    deadlines = TimerWheel()
    targets = [(seconds, Target(loop)) for seconds in (0.0, 0.5, 0.013, 0.5, 60.0, 0.0199)]
    for seconds, target in targets:
        deadlines.add(target, seconds)
    loop.move(100)
    for seconds, target in targets:
        (met,) = target.met
        assert 0 <= met - 100 - seconds <= 0.021
    assert loop.timers == []


def test_how_late_one_is_does_not_depend_on_the_time_of_the_loop_at_first(loop: FakeLoop) -> None:
    late: list[list[float]] = []
    for base in (11_400.0, 1e6 + 7, 5e6 + 3):
        loop.now, deadlines = base, TimerWheel()
        late.append([])
        for n in range(1, 200):
            target = Target(loop)
            deadlines.add(target, n / 100)
            begin = loop.now
            loop.move(4)
            late[-1].append(round(target.met[0] - begin - n / 100, 6))
    assert late[0] == late[1] == late[2]


def test_a_discarded_one_is_not_met(loop: FakeLoop) -> None:
    deadlines = TimerWheel()
    kept, gone = Target(loop), Target(loop)
    deadlines.add(kept, 1)
    bucket = deadlines.add(gone, 1)
    deadlines.discard(gone, bucket)
    deadlines.discard(gone, bucket)
    loop.move(2)
    deadlines.discard(kept, bucket)
    assert (len(kept.met), gone.met) == (1, [])


def test_there_is_one_timer_however_many_there_are(loop: FakeLoop) -> None:
    deadlines = TimerWheel()
    for n in range(10_000):
        deadlines.add(Target(loop), 5 + (n % 100) / 1000)
        assert len(loop.timers) == 1
    assert loop.made <= 3


def test_an_earlier_one_moves_the_timer(loop: FakeLoop) -> None:
    deadlines = TimerWheel()
    late, early = Target(loop), Target(loop)
    deadlines.add(late, 10)
    deadlines.add(early, 1)
    loop.move(2)
    assert (len(early.met), late.met) == (1, [])
    loop.move(10)
    assert len(late.met) == 1


def test_a_target_may_set_the_next_deadline_when_one_is_met(loop: FakeLoop) -> None:
    deadlines = TimerWheel()

    class Again(Target):
        def on_deadline(self) -> None:
            super().on_deadline()
            if len(self.met) < 3:
                deadlines.add(self, 0.05)

    target, other = Again(loop), Target(loop)
    deadlines.add(target, 0.05)
    deadlines.add(other, 0.08)
    loop.move(1)
    assert (len(target.met), len(other.met)) == (3, 1)


def test_after_the_close_nobody_is_called(loop: FakeLoop) -> None:
    deadlines = TimerWheel()
    target = Target(loop)
    deadlines.add(target, 1)
    deadlines.close()
    deadlines.close()
    loop.move(2)
    assert (target.met, loop.timers) == ([], [])
