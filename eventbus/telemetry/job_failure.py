"""The failure of a job: what hooks are told of a job that ended as failed. A value, made from the job's
records.

Not here: when hooks are called (`handlers.failures`), and what an error's record holds (`telemetry.failure`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from eventbus.telemetry.failure import Failure

FailureOutcome: TypeAlias = Literal["failed", "stalled", "expired", "timeout"]


class JobFailure(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of one job, or one flow, that ended as failed.

    It has no payload: `await provider.inspector.jobs.get(failure.job_id)` reads that.
    """

    name: str
    """The event, the workflow or the durable function; for a job of another kind its queue."""
    group: str = "default"
    """The group whose job it was."""
    step: str = ""
    """For a flow, the step or task that made it fail; empty if none did, such as after a timeout."""
    job_id: str
    """The id of the job; for a flow the id of the flow."""
    flow_id: str = ""
    """For a flow its id, which `job_id` is as well; empty for a job of an event."""
    root_id: str
    """For the flow of a sub-workflow the id of the outermost flow; for all others `job_id`."""
    queue: str
    correlation_id: str
    """The id that all jobs of the chain share."""
    meta: Mapping[str, Any] = {}
    """The meta of the emission or of the flow."""
    attempts: int = 0
    """How many attempts ended in an error; for a flow, those of `step`."""
    stalls: int = 0
    """How often the lease of the job ran out; for a flow, that of the job of `step`, if it failed for
    that.
    """
    outcome: FailureOutcome
    """Why it failed: an error (`failed`), workers that died (`stalled`), its `ttl` (`expired`), the timeout
    of a flow.
    """
    error_type: str
    """The class of the error; for a flow, of the error of `step`."""
    message: str = ""
    traceback: str = ""
    causes: list[tuple[str, str]] = []
    """The class and the message of the causes of the error, the nearest one first."""
    is_declared: bool = False
    """Whether the event or the workflow declares the error in `errors`, so that the caller expects it."""
    rollback: str = ""
    """For a flow: `complete`, `none`, or `incomplete`, which is for a person to repair. Empty for a job of an
    event.
    """
    rollback_errors: list[tuple[str, str]] = []
    """The steps whose rollback failed, each with its error as text."""
    worker: str = ""
    """The id of the worker that ended the job, and whose process calls the hook."""

    @property
    def error(self) -> str:
        """The class and the message of the error as one text, such as `ValueError: no card`."""
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


def outcome_of(failure: Failure) -> FailureOutcome:
    """Return why a job failed, from the record of its error."""
    if failure.expired:
        return "expired"
    return "stalled" if failure.stalls else "failed"
