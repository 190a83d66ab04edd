"""The listener for failures: what hears of each job that this worker has ended as failed.

The engine knows jobs and no hooks. What must always hold: the listener hears of a job only after the server
has recorded the end for this worker, and once. A settle that was refused, because the lease was lost, is not
heard of, unless it may be the copy of one that was recorded.

Crash window: `dies-before-failure-hook`: the process dies between the answer and the call of a hook, or
before the answer that would have said so. Nobody is told then; the record of the job and its log event stay.
"""

from __future__ import annotations

from typing import Protocol

from eventbus.engine.job import Job


class FailureListener(Protocol):
    """Hears of failed jobs, in the event loop of the worker. Its methods return at once and must not
    raise.
    """

    def note(self, job: Job, text: str, *, is_doubtful: bool = False) -> None:
        """Hear of a job of this worker: the server has recorded that it failed with the error `text`, JSON.

        If somebody cancelled the job just before, the server has recorded that instead. It is doubtful
        whether the job failed here if its settle was sent a second time and refused then: the first one may
        have been recorded.
        """
        ...

    def note_unseen(self, job_id: str) -> None:
        """Hear of a job of which only the id is known: its lease ran out too often, or its record cannot be
        read.
        """
        ...
