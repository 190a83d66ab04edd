"""Reports of flows as plain values: the state of a flow, its steps and its rollbacks.

Distributed and inline flows have the same reports, so that tests and tools can read both.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from workflows.errors import Rollback

__all__ = [
    "FlowReport",
    "FlowState",
    "FlowStatus",
    "FlowSummary",
    "FlowTree",
    "RollbackReport",
    "StepReport",
    "StepState",
    "nested_progress",
]

FlowState: TypeAlias = Literal[
    "pending", "running", "waiting", "rolling_back", "completed", "failed", "cancelled"
]
StepState: TypeAlias = Literal[
    "waiting",
    "sleeping",
    "active",
    "delayed",
    "completed",
    "skipped",
    "failed",
    "cancelled",
    "unknown",
    "damaged",
]


class FlowStatus(msgspec.Struct, frozen=True):
    """The state of a flow; `rollback` is meaningful once the state is `failed` or `cancelled`."""

    state: FlowState
    rollback: Rollback = "none"


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `attempts` counts the attempts that ended in an error; `error` is the text of the last error.

    The state is `damaged` if the record of the step cannot be read; `error` then says why. If a result does
    not fit the type that is registered here, it is None, and `error` says so. `progress` is what the attempt that
    runs has told last with `ctx.progress`, None if none runs or it has told nothing. That of a sub-workflow is a dict with
    the progress of its steps, by name. `started_ms` and `ended_ms` are
    Unix times in milliseconds of the last attempt, 0 if there is none.
    """

    step: str
    state: StepState
    result: Any = None
    attempts: int = 0
    error: str = ""
    progress: Any = None
    started_ms: int = 0
    ended_ms: int = 0


class RollbackReport(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback that ran. `step` is a path for a sub-workflow's step; `error` is empty on success."""

    step: str
    error: str = ""


class FlowReport(msgspec.Struct, frozen=True, kw_only=True):
    """One flow. `order` names the completed steps in order of completion; `rollbacks` are in running order.

    `run` counts from 1 and rises with each retry by hand; the report is about the last run. If the flow of a
    sub-workflow cannot be read, it has no steps, and its `error` says why. A flow that `is_parked` waits for a
    worker that can run it, and `error` says why none of those that tried can. `created_ms` and `ended_ms` are
    Unix times in milliseconds, or 0.
    """

    flow_id: str
    workflow: str
    state: FlowState
    run: int = 1
    rollback: Rollback = "none"
    steps: dict[str, StepReport] = {}
    order: list[str] = []
    rollbacks: list[RollbackReport] = []
    is_parked: bool = False
    error: str = ""
    created_ms: int = 0
    ended_ms: int = 0


class FlowTree(msgspec.Struct, frozen=True, kw_only=True):
    """A flow with the flows of its sub-workflows, and the errors of attempts that another attempt followed.

    `errors` maps a step to its errors, stalls among them: the newest 50, the oldest first. The empty name has
    the errors of the flow itself: of its `completed` hook and of its earlier runs. `nested` maps a step that
    is a sub-workflow to its flows, one for each attempt.
    """

    report: FlowReport
    errors: dict[str, list[str]] = {}
    nested: dict[str, list[FlowTree]] = {}


class FlowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list of flows. `completed` counts completed steps; times are Unix times in ms, or 0.

    A flow that `is_parked` waits for a worker that can run it; `error` says why none of those that tried can.
    """

    flow_id: str
    workflow: str
    state: FlowState
    run: int = 1
    rollback: Rollback = "none"
    completed: int = 0
    is_parked: bool = False
    created_ms: int = 0
    ended_ms: int = 0
    error: str = ""


def nested_progress(report: FlowReport) -> dict[str, Any] | None:
    """Return the progress of the step that is a sub-workflow, from the report of its flow; None if no step told any."""
    return {name: step.progress for name, step in report.steps.items() if step.progress is not None} or None
