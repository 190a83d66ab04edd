"""The wait list: which emissions wait for which job, for all providers of one uplink.

    registered under its own id -> (joined: under the id of the earlier job) -> settled

Not here: how outcomes arrive (`reply_reader`, `lookup`), and what a single provider adds (`completion`). The
list does no I/O.

It is one list for all providers, because they share one emitter name: the server says once that a job ended,
however many of them wait for it.

What must always hold:
- an outcome settles each emission that waits for its job, whichever provider made it, and no other;
- an outcome may overtake the answer to the add that joined its job. It is held back in `_early`, bounded in
  number and age, while an answer to an add with a key is owed; also when other emissions waited for it
  already. It counts only for adds that were sent before it came: an earlier one is of an earlier run of the
  job;
- a job may run again, by a retry, while the stream still brings the outcome of the run before. Of a job that
  is waited for by its emission alone there is no run before. Any other is `_watched`: the stream only says
  that there may be an outcome, and the record says which. If the record is gone, no later run can be;
- what is read from a record is told to those who waited before it was asked for: who came later may wait for
  a later run;
- an emission leaves the list by its outcome, by an error, by its timeout or by the stop of its provider,
  never silently.

Crash windows:
    `reply-before-answer`  an outcome overtakes the answer to the add: it is held back
    `told-again`           the stream brings late what an earlier run told: the record is read
    `early-dropped`        it does not fit in what is held back: the answer has it looked up
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

from eventbus.emit.emission import PendingEmission
from eventbus.model import clock
from eventbus.model.states import FINAL_STATES
from eventbus.runtime.timers import TimerWheel
from eventbus.store.scripting.script_rows import Outcome

# Bounds of the outcomes that are held back. One that is dropped is looked up when an answer asks for it.
EARLY_LIMIT = 10_000
EARLY_AGE = 60.0  # seconds


class WaitList:
    """The emissions of one uplink that wait for an outcome, by job."""

    def __init__(self) -> None:
        self.jobs: dict[str, list[PendingEmission[Any]]] = {}
        """Job -> the emissions that wait for it. Others than this object only read it, and register."""
        self.deadlines: TimerWheel = TimerWheel()
        self.unlisted: set[str] = set()
        """Jobs for which so many emitters wait that this one is not told, but has to ask."""
        self.unread: list[str] = []
        """Jobs that ended with an outcome that has to be read from their records."""
        self.unread_noted: asyncio.Event = asyncio.Event()
        self.announced: int = 0
        """How many outcomes had to be read from records so far."""
        self.looked: int = 0
        """How many of them, from the first on, were."""
        self.late: int = 0
        """How many there were when an answer last asked for one. That job may have ended long before."""
        self._early: dict[str, tuple[float, Outcome]] = {}
        self._watched: dict[str, Outcome | None] = {}
        """Job that somebody waits for who did not make it -> what the stream said last."""
        self._owed_answers = 0
        self._dropped_at = 0.0
        """When an outcome was last not held back any more that an answer may have asked for."""

    def watch(self, emission: PendingEmission[Any]) -> None:
        """Wait for a job that is in the server, beside other emissions that wait for it."""
        self._watched.setdefault(emission.job_id)
        self.jobs.setdefault(emission.job_id, []).append(emission)

    def join(
        self, emission: PendingEmission[Any], job_id: str, state: str, text: str, *, since: float
    ) -> None:
        """Wait for the earlier job that has the emission's key; its `state` is `open`, `unlisted` or final.

        `unlisted`: so many emitters wait for the open job that this one has to ask for its outcome. `since`
        is when the add was sent, in monotonic seconds.
        """
        self.discard(emission)
        emission.job_id, emission.joined = job_id, True
        emission.mark_enqueued()
        if emission.done():
            return
        self.watch(emission)
        if state in FINAL_STATES:
            if text:
                self.settle_recorded(Outcome(job_id, state, text), [emission])
            else:  # only the key is left of the job, or the outcome is too large for the answer
                self._ask(job_id)
                self.late = self.announced
            return
        if state == "unlisted":
            self.unlisted.add(job_id)
        when, early = self._early.get(job_id, (0.0, None))
        is_early = early is not None and when >= since  # the outcome overtook this answer
        if is_early:
            self._watched[job_id] = early
        if is_early or (self._dropped_at >= since and state == "open"):  # or perhaps it did, and was dropped
            self._ask(job_id)
            self.late = self.announced

    def expect_answers(self, count: int) -> None:
        """Count the adds with a key whose answer is owed. A negative `count` says that they were answered."""
        self._owed_answers += count
        if self._owed_answers == 0:
            self._early.clear()

    def settle(self, outcome: Outcome) -> None:
        """Settle the emissions that wait for what the stream brought, or hold it back. Drop what is foreign.

        An outcome without its text, and one that may be of an earlier run, is read from the record first.
        """
        if self._owed_answers:
            self._hold(outcome)
        if outcome.job in self._watched:
            self._watched[outcome.job] = outcome
            self._ask(outcome.job)
        elif outcome.job in self.jobs:
            if outcome.text is None:
                self._ask(outcome.job)
            else:
                self._finish(self.jobs.pop(outcome.job), outcome.state, outcome.text)

    def settle_recorded(self, outcome: Outcome, asked: Collection[PendingEmission[Any]]) -> None:
        """Settle those of the emissions `asked` that still wait, with what the record of their job says; hold
        it back for others.
        """
        if self._owed_answers:
            self._hold(outcome)
        emissions = self.jobs.pop(outcome.job, ())
        if left := [each for each in emissions if each not in asked]:
            self.jobs[outcome.job] = left
        else:
            self._watched.pop(outcome.job, None)
        self._finish([each for each in emissions if each in asked], outcome.state, outcome.text or "")

    def told_of(self, job_id: str) -> Outcome | None:
        """Return what the stream said last of a job that is watched, if it said the outcome itself."""
        told = self._watched.get(job_id)
        return None if told is None or told.text is None else told

    def note_open(self, job_id: str, told: Outcome | None) -> None:
        """Forget what the stream told of a job before its record was read as open: a run before ended so."""
        if told is not None and self._watched.get(job_id) is told:
            self._watched[job_id] = None

    def _finish(self, emissions: list[PendingEmission[Any]], state: str, text: str) -> None:
        for emission in emissions:
            self.deadlines.discard(emission, emission.bucket)
            emission.settle(state, text)

    def forget(self, emission: PendingEmission[Any], error: Exception) -> None:
        """End the emission with `error`, and stop waiting for its job."""
        self.drop(emission)
        emission.fail(error)

    def drop(self, emission: PendingEmission[Any]) -> None:
        """Stop waiting for the emission's job without an end of the emission."""
        self.discard(emission)
        self.deadlines.discard(emission, emission.bucket)

    def discard(self, emission: PendingEmission[Any]) -> None:
        """Remove an emission from those that wait. Does nothing if it is not among them."""
        emissions = self.jobs.get(emission.job_id)
        if emissions is None or emission not in emissions:
            return
        emissions.remove(emission)
        if not emissions:
            del self.jobs[emission.job_id]
            self._watched.pop(emission.job_id, None)

    def find_enqueued(self) -> list[str]:
        """Return the jobs that emissions wait for and that are known to be in the server."""
        return [job_id for job_id, waiting in self.jobs.items() if any(one.is_enqueued for one in waiting)]

    def _ask(self, job_id: str) -> None:
        """Have the outcome of a job read from its record."""
        self.unread.append(job_id)
        self.announced += 1
        self.unread_noted.set()

    def _hold(self, outcome: Outcome) -> None:
        """Hold an outcome back for an emission whose add is not answered yet."""
        now = clock.monotonic()
        self._early.pop(outcome.job, None)  # so that the dictionary stays in the order of arrival
        self._early[outcome.job] = (now, outcome)
        for job_id in _too_many(self._early, now):
            del self._early[job_id]
            self._dropped_at = now


def _too_many(early: dict[str, tuple[float, Outcome]], now: float) -> Iterable[str]:
    """Return the ids of the oldest entries past the bounds; a dictionary keeps the order of arrival."""
    over = len(early) - EARLY_LIMIT
    gone: list[str] = []
    for place, (job_id, (when, _)) in enumerate(early.items()):
        if place >= over and now - when <= EARLY_AGE:
            break
        gone.append(job_id)
    return gone
