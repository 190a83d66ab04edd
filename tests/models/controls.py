"""What is ordered for queues, in the job model: which are paused. And the calls that order it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from models.job_model_values import Turn

__all__ = ["ControlRules", "Controls"]


class Controls:
    """What is ordered for the queues of one shard."""

    def __init__(self) -> None:
        self.paused: set[str] = set()

    def is_open(self, queue: str) -> bool:
        """Return whether jobs of the queue may be claimed now."""
        return queue not in self.paused

    def bound(self, turn: Turn) -> Turn:
        """Return the turn as it must be answered: a queue that is closed is as one that is not asked."""
        quotas = [(name, quota if self.is_open(name) else 0) for name, quota in turn.queues]
        return replace(turn, queues=quotas)


class ControlRules:
    """The calls of operators, for the state machine of jobs."""

    bench: Any
    store: Any
    model: Any
    check: Any

    @rule(queue=st.sampled_from(["a", "b", "b@g"]))
    def pause(self, queue: str) -> None:
        now = self.model.now
        self.bench.run(self.store.controls.pause, queue, by="ann", reason="no", now=now)
        self.model.controls.paused.add(queue)
        self.check()

    @rule(queue=st.sampled_from(["a", "b", "b@g"]))
    def resume(self, queue: str) -> None:
        self.bench.run(self.store.controls.resume, queue, now=self.model.now)
        self.model.controls.paused.discard(queue)
        self.check()
        assert set(self.bench.run(self.store.controls.limited)) == self.model.controls.paused

    def resume_all(self) -> None:
        """Take all orders back."""
        for queue in sorted(self.model.controls.paused):
            self.resume(queue)
