"""Emitters' floors in the job model: who holds back what ended, and the calls of emitters that change it.

An emitter of the model says its name with each add until the server knows it, and raises its floor only over
adds that it will not repeat.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from models.snapshots import ENDED

from eventbus.store.scripting.script_rows import Outcome

__all__ = ["EMITTERS", "WINDOW", "FloorRules", "Floors"]

WINDOW = 120_000
EMITTERS = ["em", "el", "gone"]
_GONE = 600_000


class Floors:
    """The floors of one shard: attendance -> the time up to which its emitter has got all outcomes."""

    def __init__(self) -> None:
        self.scores: dict[str, int] = {}

    def say(self, emitter: str, now: int, *, always: bool) -> str:
        """Return what an add of the emitter says: its name, unless the server knows it."""
        name = f"{emitter}:1"
        if name in self.scores and not always:
            return ""
        self.scores[name] = min(now, self.scores.get(name, now))
        return name

    def limit(self, state: str, now: int) -> int:
        """Return the time before which jobs of this final state have ended that may go."""
        lowest = min(self.scores.values(), default=now)
        if state != "completed" or lowest > now:
            return now - WINDOW
        return max(lowest, now - WINDOW)

    def sweep(self, now: int) -> None:
        self.scores = {name: score for name, score in self.scores.items() if score >= now - _GONE}


class FloorRules:
    """The calls of emitters about their floors, for the state machine of jobs."""

    bench: Any
    store: Any
    model: Any
    checker: Any
    added: Any
    check: Any
    some_jobs: Any
    pass_time: Any
    sweep: Any

    @rule(emitter=st.sampled_from(EMITTERS), back=st.sampled_from([-5, 0, 0, 1, 1000]))
    def raise_floor(self, emitter: str, back: int) -> None:
        """The emitter has got all that ended up to some time; one that is ahead was told before the clock was
        set.
        """
        name, floor, now = f"{emitter}:1", self.model.now - back, self.model.now
        if self.added is not None and self.added[0] == emitter:
            self.added = None  # answered, so it is not repeated
        self._attend(emitter, name, floor)
        scores = self.checker.floors.scores
        scores[name] = floor if floor <= now else min(now, scores.get(name, now))
        self.check()

    @rule(emitter=st.sampled_from(EMITTERS))
    def keep_floor(self, emitter: str) -> None:
        self._attend(emitter, self.checker.floors.say(emitter, self.model.now, always=True), "")
        self.check()

    @rule(emitter=st.sampled_from(EMITTERS))
    def leave(self, emitter: str) -> None:
        if self.added is not None and self.added[0] == emitter:
            self.added = None
        self._attend(emitter, f"{emitter}:1", "left")
        self.checker.floors.scores.pop(f"{emitter}:1", None)
        self.check()

    @rule(data=st.data(), emitter=st.sampled_from(EMITTERS), join=st.booleans())
    def look(self, data: st.DataObject, emitter: str, join: bool) -> None:
        ids = self.some_jobs(data.draw)
        answer = self.look_up(emitter, ids, join=join)
        assert [tuple(each) for each in answer] == self.model.look(emitter, ids, join=join)
        self.check()

    @precondition(lambda self: any(job.state in ENDED for job in self.model.jobs.values()))
    @rule()
    def sweep_old(self) -> None:
        self.pass_time(200_001)
        self.sweep(1000)

    def look_up(self, emitter: str, ids: list[str], *, join: bool) -> list[Outcome]:
        """Look jobs up; who joins one says its name."""
        now, jobs = self.model.now, self.model.jobs
        joins = join and any(each in jobs and jobs[each].is_open for each in ids)
        said = self.checker.floors.say(emitter, now, always=True) if joins else ""
        return self.bench.run(self.store.look, emitter, ids, join=join, attendance=said, now=now)

    def _attend(self, emitter: str, name: str, floor: int | str) -> None:
        self.bench.script("attend", [self.model.now, emitter, 600, 0, name, floor, ""])
