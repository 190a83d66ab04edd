"""Leases in the job model: who is registered, renewals, rescues, and what was handed over and is
taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from models.hands import Hands
from models.job_model_values import Job, Memory, Queue
from models.job_places import in_order, worker_of
from models.merges import Merges
from models.snapshots import UNIT
from models.stall_model import Blame, Blames, is_spent, note_stall
from models.strategies import LEASE

__all__ = ["MESSAGES", "LeaseRules", "Leases"]

_MEMORY = 600_000 // UNIT
MESSAGES = 120_000 // UNIT
"""How long a worker's messages are kept."""
_DAY = 86_400_000


class Leases(Merges):
    """The part of the model that decides who may settle."""

    def __init__(self, now: int, queues: Iterable[Queue], *, emitters: Iterable[str]) -> None:
        """Only `emitters` have a reply stream."""
        super().__init__(now, queues, emitters=emitters)
        self.memories: dict[str, Memory] = {}
        self.heard: int | None = None
        self.grace = 0
        self.lags: dict[str, tuple[int, int]] = {}
        self.leases: dict[str, int] = {}
        """worker -> when its leases end."""
        self.registered: set[str] = set()
        """The workers that took a turn and were not rescued since."""
        self._blames = Blames()
        self.hands = Hands()

    def take_back(self, jobs: Sequence[Job]) -> list[Job]:
        """Take back what was handed over and did not run, which is no stall. Return what is to be placed."""
        for job in jobs:
            self.withdraw(worker_of(job), job.id)
            job.token, job.state = "", "waiting"
            if job.cancelled_by:
                self.finish(job, "cancelled", None, _DAY)
        return [job for job in jobs if job.is_open]

    def withdraw(self, worker: str, job: str) -> None:
        self.hands.open.pop((worker, job), None)
        messages = self.messages.pop(worker, set())
        left = {message for message in messages if not message.startswith(f"job:{job}\n")}
        if left:
            self.messages[worker] = left

    def leave(self, worker: str, pool: str) -> None:
        """A worker stops serving, and knows of no job."""
        self.hands.idle.pop((pool, worker), None)
        unread = [job for job in self.held_by(worker) if self.hands.is_unread(job)]
        self.give_back(self.take_back(unread))

    def register(self, worker: str) -> None:
        if worker in self.registered:
            return
        self.registered.add(worker)
        self.leases[worker] = self.now + LEASE
        for lane in {worker, f"{worker}+"}.intersection(self.memories):
            self.memories[lane].expires = None

    def _unregister(self, worker: str) -> None:
        self.registered.discard(worker)
        del self.leases[worker]
        for lane in {worker, f"{worker}+"}.intersection(self.memories):
            self.memories[lane].expires = self.unit + _MEMORY

    def renew(
        self, worker: str, lag: int, leases: Sequence[tuple[str, str]], calls: tuple[int, int]
    ) -> tuple[list[str], list[str], list[str]]:
        """`calls` are the last turns of both lanes whose answers the worker knows; it gives back what it does
        not name.
        """
        self._hear()
        self.lags[worker] = (lag, self.unit + _MEMORY)
        if worker in self.registered:
            self.leases[worker] = self.now + LEASE
        lost = [each for each in leases if not self.holds(*each) or worker_of(self.jobs[each[0]]) != worker]
        held = [self.jobs[each[0]] for each in leases if each not in lost]
        cancelled = [job.id for job in held if job.cancelled_by]
        returned: list[Job] = []
        for job in self.held_by(worker):
            if job in held:
                self.hands.open.pop((worker, job.id), None)  # to name it is to confirm it
            elif self._was_heard(job, worker, calls):
                returned.append(job)
                self.withdraw(worker, job.id)
                note_stall(job, None)
                if job.cancelled_by:
                    self.finish(job, "cancelled", None, _DAY)
                else:
                    job.state = "waiting"
        self.give_back([job for job in returned if job.is_open])
        return [job for job, _ in lost], cancelled, [job.id for job in returned]

    def _was_heard(self, job: Job, worker: str, calls: tuple[int, int]) -> bool:
        """Return whether a worker that does not name a job has heard of it. A job that was handed over has a
        lease.
        """
        lane, _, call = job.token.partition(":")
        if call == "h":
            return job.claimed[0] <= self.now - LEASE and (worker, job.id) not in self.hands.open
        return int(call) <= calls[lane.endswith("+")]

    def _hear(self) -> None:
        if self.heard is not None and self.now - self.heard > LEASE / 2:
            self.grace = self.now + LEASE
        self.heard = self.now

    def rescue(
        self, limit: int, max_stalls: int, key_ttl: int
    ) -> tuple[int, list[tuple[str, str, str, int, int]]]:
        self._hear()
        if self.now < self.grace:
            return self.grace - self.now, []
        over = sorted((end, worker) for worker, end in self.leases.items() if end <= self.now)
        rows: list[tuple[str, str, str, int, int]] = []
        unread: list[Job] = []
        for end, worker in over:
            held = self.held_by(worker)
            lag, _ = self.lags.get(worker, (0, 0))
            ran = [job for job in held if not self.hands.is_unread(job)]
            blame = self._blames.find(worker, end, LEASE, ran)
            for job in held[-(limit - len(rows) - len(unread)) :]:
                if job not in ran:
                    unread.append(job)
                    job.state = "taken"
                    continue
                verdict = self._judge(job, blame, max_stalls, key_ttl)
                rows.append((job.id, verdict, worker, self.now - end + LEASE, lag))
            if self.held_by(worker):
                break  # the next call goes on
            self._unregister(worker)
            if len(rows) + len(unread) >= limit:
                break
        back = [self.jobs[row[0]] for row in rows if row[1] == "rescued"]
        self.give_back([*in_order(back), *self.take_back(unread)])
        left = min(self.leases.values(), default=None)
        return -1 if left is None else max(0, left - self.now), rows

    def _judge(self, job: Job, blame: Blame, max_stalls: int, key_ttl: int) -> str:
        is_blamed = note_stall(job, blame)
        if job.cancelled_by or (is_blamed and is_spent(job, blame, max_stalls)):
            self.finish(job, "cancelled" if job.cancelled_by else "failed", None, key_ttl)
            return job.state
        job.state = "waiting"
        return "rescued"


class LeaseRules:
    """Calls around the moments when leases end, for the state machine of jobs."""

    @precondition(lambda self: any(job.state == "active" for job in self.model.jobs.values()))
    @rule()
    def lose_leases(self: Any) -> None:
        """No lease is renewed, although workers reach the server all the time; then a worker rescues."""
        self._wait_heard(5 * LEASE // 4)
        self._rescue(100, 3)

    def _wait_heard(self: Any, ms: int) -> None:
        """Let time pass in which workers reach the server."""
        while ms > 0:
            self.pass_time(min(ms, LEASE // 4))
            self._renew("idle", 0, [])
            ms -= LEASE // 4

    @rule(offset=st.sampled_from([-1, 0]), turns=st.booleans())
    def approach(self: Any, offset: int, turns: bool) -> None:
        """Just before, or at, the moment when something runs out."""
        model = self.model
        ends = list(model.leases.values())
        due = [each.due for each in model.jobs.values() if each.state == "delayed"]
        due += model.hands.open.values()
        left = [each + offset - model.now for each in (due if turns else ends) if each > model.now - offset]
        if left:
            self._wait_heard(min(left))
        if turns:
            self._next_turn("w")
        else:
            self._rescue(100, 3)

    @precondition(lambda self: self.model.jobs)
    @rule(worker=st.sampled_from(["w", "w+"]), repeats=st.booleans(), deaths=st.sampled_from([1, 1, 3, 6]))
    def oversleep(self: Any, worker: str, repeats: bool, deaths: int = 1) -> None:
        """A worker sleeps past its leases, once or again and again, and another one takes its jobs."""
        for _ in range(deaths):
            self._next_turn(worker)
            self.lose_leases()
        self._next_turn("x")
        if repeats:
            self._turn(self.turns[worker])
