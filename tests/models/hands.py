"""Handing over in the job model: who may be handed a job, what is not confirmed yet, and the calls around it.

Which idle worker gets a job, and whether one does, is the server's choice. The model only says when that is
allowed.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from models.job_model_values import Job, Turn
from models.strategies import LONE, TEXTS

from eventbus.store.scripting.script_rows import AddRow, TurnAnswer

__all__ = ["HandRules", "Hands", "describe_handed"]

_PATIENCE = 1500
_COUNTS = 10_000


class Hands:
    """What was handed over and not confirmed, and who counts as idle."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, str], int] = {}
        """Worker and job -> until when the worker may confirm it."""
        self.idle: dict[tuple[str, str], int] = {}
        """Pool and worker -> until when that counts."""

    def turn(self, turn: Turn, answer: TurnAnswer, now: int) -> None:
        """Note what a turn says of its worker."""
        place = (turn.pool, turn.worker.rstrip("+"))
        if turn.idle == 1 and not (answer.claims or answer.more or answer.woken):
            self.note_idle(*place, now)
        elif turn.idle == 3 or (turn.idle == 2 and answer.claims):
            self.idle.pop(place, None)

    def note_idle(self, pool: str, worker: str, now: int) -> None:
        self.idle[pool, worker] = now + _COUNTS

    def keep(self, pool: str, worker: str, now: int) -> None:
        """A worker announces itself: it counts on, also if that was over."""
        if (pool, worker) in self.idle:
            self.note_idle(pool, worker, now)

    def give(self, job: str, worker: str, now: int) -> None:
        """Hand a job to a worker that counts as idle."""
        (place,) = [each for each, until in self.idle.items() if each[1] == worker and until >= now]
        del self.idle[place]
        self.open[worker, job] = now + _PATIENCE

    def is_unread(self, job: Job) -> bool:
        """Return whether a job is held by a worker that was handed it and has not confirmed it."""
        worker, _, call = job.token.partition(":")
        return call == "h" and (worker, job.id) in self.open

    def take_due(self, now: int) -> list[tuple[str, str]]:
        """Return what was not confirmed in time, in the order of the times; it counts as open no more."""
        due = sorted((until, f"{worker}/{job}", worker, job) for (worker, job), until in self.open.items())
        found = [(worker, job) for until, _, worker, job in due if until <= now]
        for each in found:
            del self.open[each]
        return found


def describe_handed(job: Job) -> str:
    """Return the message that brings a job to its worker."""
    return f"job:{job.id}\n{job.queue}\n{job.created}\n{job.body}"


class HandRules:
    """The calls around lone jobs, for the state machine of jobs."""

    bench: Any
    store: Any
    model: Any
    checker: Any
    leases: Any
    check: Any
    handed: ClassVar[int] = 0
    """How many jobs were handed over, in all examples."""

    @rule(worker=st.sampled_from(["w", "x"]), confirms=st.sampled_from([True, True, False]))
    def hear(self, worker: str, confirms: bool) -> None:
        """The blocked read brings a worker its messages; it confirms what was handed to it, or does not get
        so far.
        """
        for message, _ in self.bench.client.zpopmin(self.store.keys.control(worker), 100):
            kind, _, rest = message.partition(":")
            if confirms and kind == "job":
                self._confirm(worker, rest.partition("\n")[0])
        self.model.messages.pop(worker, None)
        self.check()

    def _confirm(self, worker: str, job: str) -> None:
        was_open = self.bench.client.zrem(self.store.keys.shard_key("due"), f"hand:{worker}/{job}") == 1
        assert was_open == ((worker, job) in self.model.hands.open), "what may be confirmed"
        self.model.hands.open.pop((worker, job), None)
        if was_open:
            self.leases.append((job, f"{worker}:h"))

    @rule(
        worker=st.sampled_from(["w", "w", "x"]),
        row=LONE,
        hears=st.booleans(),
        is_held_back=st.sampled_from([False, False, True]),
    )
    def add_lone(self: Any, worker: str, row: AddRow, hears: bool, is_held_back: bool) -> None:
        """A worker that has nothing to do says so, and then a lone job comes."""
        if not is_held_back:  # by a pause or a limit
            self.take_orders_back()
        self.announce("one" if worker == "x" else "both", unpark=False)
        self._next_turn(worker)
        self._next_turn(worker, self._settle_all(worker, "completed", "1"), want=0)
        self._next_turn(worker, idle=1)
        self.add("em", [row])
        if hears:
            self.hear(worker, confirms=True)

    def note_handed(self, rows: list[AddRow]) -> None:
        """See which of the rows the server has handed over."""
        client, keys = self.bench.client, self.store.keys
        for row in rows:
            job = self.model.jobs.get(row.id)
            for worker in ("w", "x") if job is not None and job.state == "waiting" else ():
                if client.hexists(keys.of("held", worker), row.id):
                    assert len(rows) == 1, "a lone job is handed over"
                    self.model.hand_over(job, worker)
                    HandRules.handed += 1

    @precondition(lambda self: any(job.token.endswith(":h") for job in self.model.jobs.values()))
    @rule(data=st.data(), text=TEXTS, is_idle=st.booleans(), repeats=st.booleans())
    def settle_handed(self, data: st.DataObject, text: str, is_idle: bool, repeats: bool) -> None:
        """The short way of a job that was handed over, also where it was not confirmed or is not as simple
        any more.
        """
        job = data.draw(
            st.sampled_from([each for each in self.model.jobs.values() if each.token.endswith(":h")])
        )
        worker, pool = job.token.removesuffix(":h"), "both" if job.token == "w:h" else "one"
        for _ in range(1 + repeats):
            word = self.model.settle_one(job, worker, text, pool if is_idle else "")
            kept = self.model.queues[job.queue].kept
            answer = self.bench.run(
                self.store.settle_one,
                worker=worker,
                job=job.id,
                text=text,
                pool=pool if is_idle else "",
                keep=kept.keep_completed,
                age=kept.age_completed,
                deadline=10.0**12,
                now=self.model.now,
            )
            assert answer == word, job
            self.check(may_forget=True)
            if job.id not in self.model.jobs:
                return
