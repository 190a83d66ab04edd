"""What is ordered for queues, in the job model: which are paused, and how many of their jobs may run at once.

What runs when a limit begins counts, too; and whoever takes a job out of a hold gives its slot back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import rule
from models.controls.lanes import list_claimable
from models.job_model_values import Job, Turn

__all__ = ["ControlRules", "Controls"]

_MANY = 10**9
_QUEUES = st.sampled_from(["a", "a", "b", "b@g", "a/s"])


class Controls:
    """What is ordered for the queues of one shard."""

    def __init__(self) -> None:
        self.paused: set[str] = set()
        self.at_once: dict[str, int] = {}
        """Of queues with a limit: how many of their jobs run at once."""
        self.each: dict[str, int] = {}
        """The same of each limit key."""
        self.homes: dict[str, str] = {}
        """Shelf -> where its jobs come from, while any is there."""

    def is_open(self, queue: str, jobs: Iterable[Job]) -> bool:
        """Return whether any job that waits in the queue may be claimed now."""
        return self._free(queue, jobs) > 0 and bool(self.list_claimable(queue, jobs))

    def list_claimable(self, queue: str, jobs: Iterable[Job]) -> list[Job]:
        """Return the waiting jobs that the limit of each key lets start."""
        mine = [job for job in jobs if job.queue == queue]
        running, waiting = ([job for job in mine if job.state == state] for state in ("active", "waiting"))
        return list_claimable(waiting, running, self.each.get(queue, _MANY))

    def bound(self, turn: Turn, jobs: Iterable[Job]) -> Turn:
        """Return the turn as it must be answered: a queue that is closed is as one that is not asked."""
        quotas = [(name, min(quota, self._free(name, jobs))) for name, quota in turn.queues]
        return replace(turn, queues=quotas)

    def is_filled(self, queue: str, count: int, jobs: Iterable[Job]) -> bool:
        """Return whether the queue is full once `count` more of its jobs run: then nobody is told that it has
        more.
        """
        return queue in self.at_once and self._free(queue, jobs) <= count

    def _free(self, queue: str, jobs: Iterable[Job]) -> int:
        if queue in self.paused:
            return 0
        if queue not in self.at_once:
            return _MANY
        running = sum(job.queue == queue and job.state == "active" for job in jobs)
        return max(0, self.at_once[queue] - running)


class ControlRules:
    """The calls of operators, for the state machine of jobs."""

    bench: Any
    store: Any
    model: Any
    check: Any
    clear_shelf: Any
    filled: ClassVar[int] = 0
    """How often a limit held something back, in all examples."""

    @rule(queue=_QUEUES)
    def pause(self, queue: str) -> None:
        now = self.model.now
        self.bench.run(self.store.controls.pause, queue, by="ann", reason="no", now=now)
        self.model.controls.paused.add(queue)
        self.check()

    @rule(queue=_QUEUES)
    def resume(self, queue: str) -> None:
        self.bench.run(self.store.controls.resume, queue, now=self.model.now)
        controls = self.model.controls
        controls.paused.discard(queue)
        self.clear_shelf(queue)
        self.check()
        ordered = controls.paused | controls.at_once.keys() | controls.homes.keys()
        assert set(self.bench.run(self.store.controls.limited)) == ordered

    @rule(queue=_QUEUES, at_once=st.sampled_from([0, 1, 1, 2, 3]), each=st.sampled_from([0, 0, 1, 2]))
    def set_limit(self, queue: str, at_once: int, each: int = 0) -> None:
        limit = f'{{"at_once":{at_once},"each":{each}}}' if at_once or each else ""
        for _ in range(2):  # it may be sent again
            assert self.bench.run(self.store.controls.set_limit, queue, limit, now=self.model.now) == limit
        controls = self.model.controls
        controls.at_once.pop(queue, None)
        controls.each.pop(queue, None)
        if limit:
            controls.at_once[queue], controls.each[queue] = at_once or _MANY, each or _MANY
        self.check()

    def take_orders_back(self) -> None:
        """Take all orders back."""
        for queue in sorted(self.model.controls.at_once):
            self.set_limit(queue, 0)
        for queue in sorted(self.model.controls.paused):
            self.resume(queue)
