"""The wait list: which emissions wait for which job, for all providers of one uplink.

    registered under its own id -> (joined: under the id of the earlier job) -> settled

Not here: how outcomes arrive (`reply_reader`, `lookup`), and what a single provider adds (`completion`). The
list does no I/O.

It is one list for all providers, because they share one emitter name: the server says once that a job ended,
however many of them wait for it.

What must always hold:
- an outcome settles each emission that waits for its job, whichever provider made it, and no other;
- an outcome may overtake the answer to the add that joined its job. It is held back in `_early`, bounded in number
  and age, while an answer to an add with a key is owed; also when other emissions waited for it already. It
  counts only for adds that were sent before it came: an earlier one is of an earlier run of the job;
- an outcome that was read from the record of its job comes once more by the stream, perhaps late. Whoever
  waits for that job then waits for a later run of it. So of what the stream says again, the record says
  whether it is an outcome;
- an emission leaves the list by its outcome, by an error, by its timeout or by the stop of its provider, never
  silently.

Crash windows:
    `reply-before-answer`  an outcome overtakes the answer to the add: it is held back
    `told-again`           the stream brings late what was read from the record: the record is read anew
    `early-dropped`        it does not fit in what is held back: the answer has it looked up
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from eventbus.emit.emission import PendingEmission
from eventbus.model import clock
from eventbus.model.states import FINAL_STATES
from eventbus.runtime.timers import TimerWheel
from eventbus.store.scripting.script_rows import Outcome

__all__ = ["WaitList"]

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
        self._recorded: dict[str, int] = {}
        """Job -> the print of the outcome that was read from its record, and that the stream has yet to
        bring. There are `EARLY_LIMIT` at most, the newest.
        """
        self._owed_answers = 0
        self._dropped_at = 0.0
        """When an outcome was last not held back any more that an answer may have asked for."""

    def add(self, emission: PendingEmission[Any]) -> None:
        """Wait for the emission's job, beside other emissions that wait for it."""
        self.jobs.setdefault(emission.job_id, []).append(emission)

    def join(
        self, emission: PendingEmission[Any], job_id: str, state: str, text: str, *, since: float
    ) -> None:
        """Wait for the earlier job that has the emission's key; its `state` is `open`, `unlisted` or final.

        `unlisted`: so many emitters wait for the open job that this one has to ask for its outcome. `since` is when
        the add was sent, in monotonic seconds.
        """
        self.discard(emission)
        emission.job_id, emission.joined = job_id, True
        emission.mark_enqueued()
        if emission.done():
            return
        self.add(emission)
        if state in FINAL_STATES:
            # An empty text: only the key is left of the job, or the outcome is too large for the answer.
            self.settle_recorded(Outcome(job_id, state, text or None))
            self.late = self.late if text else self.announced
            return
        if state == "unlisted":
            self.unlisted.add(job_id)
        when, early = self._early.get(job_id, (0.0, None))
        if early is not None and when >= since:
            self.settle(early)  # the outcome overtook this answer
        elif self._dropped_at >= since and state == "open":
            self._ask(job_id)  # perhaps it did, and was dropped
            self.late = self.announced

    def expect_answers(self, count: int) -> None:
        """Count the adds with a key whose answer is owed. A negative `count` says that they were answered."""
        self._owed_answers += count
        if self._owed_answers == 0:
            self._early.clear()

    def settle(self, outcome: Outcome) -> None:
        """Settle the emissions that wait for an outcome, or hold it back. Drop foreign and late outcomes.

        An outcome without its text, or one that was read from the job's record before, is read from there
        first.
        """
        recorded = self._recorded.pop(outcome.job, None)
        if recorded is not None and recorded == _print(outcome) and outcome.job in self.jobs:
            self._ask(outcome.job)
            return
        self._settle(outcome)

    def settle_recorded(self, outcome: Outcome) -> None:
        """Settle the emissions that wait for an outcome that was read from the record of its job."""
        if outcome.text is not None:
            self._recorded.pop(outcome.job, None)  # so that the dictionary stays in the order of arrival
            self._recorded[outcome.job] = _print(outcome)
            if len(self._recorded) > EARLY_LIMIT:
                del self._recorded[next(iter(self._recorded))]
        self._settle(outcome)

    def _settle(self, outcome: Outcome) -> None:
        if outcome.text is None:
            if outcome.job in self.jobs or self._owed_answers:
                self._ask(outcome.job)
            return
        if self._owed_answers:
            self._hold(outcome)
        emissions = self.jobs.pop(outcome.job, None)
        if emissions is None:
            return
        for emission in emissions:
            self.deadlines.discard(emission, emission.bucket)
            emission.settle(outcome.state, outcome.text)

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


def _print(outcome: Outcome) -> int:
    return hash((outcome.state, outcome.text))


def _too_many(early: dict[str, tuple[float, Outcome]], now: float) -> Iterable[str]:
    """Return the ids of the oldest entries past the bounds; a dictionary keeps the order of arrival."""
    over = len(early) - EARLY_LIMIT
    gone: list[str] = []
    for place, (job_id, (when, _)) in enumerate(early.items()):
        if place >= over and now - when <= EARLY_AGE:
            break
        gone.append(job_id)
    return gone
