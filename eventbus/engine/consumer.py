"""What the engine must know about whoever runs the jobs of one queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from eventbus.engine.job import Job, Settle

__all__ = ["Consumer", "Retention"]


class Retention(msgspec.Struct, frozen=True):
    """How long a queue keeps what ended; ages in ms."""

    keep_completed: int
    age_completed: int
    keep_failed: int
    age_failed: int
    key_ttl: int


class Consumer(Protocol):
    """Runs the jobs of one queue."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        ...

    @property
    def base(self) -> str:
        """The queue that emissions name; its groups are listed under it."""
        ...

    @property
    def group(self) -> str:
        """The group, empty for the default one."""
        ...

    @property
    def concurrency(self) -> int:
        """Jobs of this queue at a time in this process."""
        ...

    @property
    def retention(self) -> Retention:
        """How long what ended is kept."""
        ...

    @property
    def follows(self) -> Sequence[str]:
        """Queues in which work may begin when jobs of this one end: asked in the call that settles them."""
        ...

    def settled(self, job_id: str, state: str, text: str) -> None:
        """A job of a queue that others follow was settled so, for good; before what follows is claimed."""
        ...

    def timeout_of(self, job: Job) -> float | None:
        """Seconds that one run of the job may take, or None; must not raise."""
        ...

    async def run(self, job: Job) -> Settle | None:
        """Run the job; None if it has suspended itself. Raises whatever its handler raises."""
        ...

    def decide(self, job: Job, error: BaseException) -> Settle:
        """What follows from an error of `run`; must not raise."""
        ...
