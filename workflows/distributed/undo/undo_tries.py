"""How often each rollback of a stopped flow has failed, kept in the checkpoints of its root, for all kinds.

What must always hold: a failed attempt that another one follows is saved before its pause, so that a worker
which takes over counts on: a rollback fails no more often than its rule allows.
"""

from __future__ import annotations

from collections.abc import Mapping

from eventbus.lowlevel import Job
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.execution.surroundings import LeaseLost
from workflows.records.checkpoints import read_tries, try_name

__all__ = ["UndoTries"]


class UndoTries:
    """The failed attempts of the rollbacks of one flow."""

    def __init__(self, runtime: WorkerRuntime, job: Job, saved: Mapping[str, str]) -> None:
        """Begin with what is `saved` in the root."""
        self.done: Mapping[str, int] = read_tries(saved)
        self._runtime = runtime
        self._job = job

    async def save(self, path: str, attempts: int) -> None:
        """Save how many attempts have failed. Raises LeaseLost, ServerAway."""
        if not await self._runtime.ask(
            self._runtime.jobs.checkpoint(self._job, {try_name(path): str(attempts)})
        ):
            raise LeaseLost
