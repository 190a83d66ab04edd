"""What the engine must know about whoever runs the jobs of one queue."""

from __future__ import annotations

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
    """Runs the jobs of one queue.

    `base` and `group` name the queue's event and group (`""`: the default one);
    `concurrency` bounds its jobs in this process; `timeout` is for one run, seconds.
    """

    @property
    def queue(self) -> str: ...
    @property
    def base(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def retention(self) -> Retention: ...

    def timeout_of(self, job: Job) -> float | None:
        """Seconds one run may take, or None."""
        ...

    async def run(self, job: Job) -> Settle:
        """Run the job. Raises whatever its handler raises."""
        ...

    def decide(self, job: Job, error: BaseException) -> Settle:
        """What follows from an error of `run`; must not raise."""
        ...
