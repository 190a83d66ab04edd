"""What became of a flow, as a value to look at: its state, its steps, its rollbacks.

The same whoever ran it, so that tests and tools read one thing.
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
]

FlowState: TypeAlias = Literal[
    "pending", "running", "waiting", "rolling_back", "completed", "failed", "cancelled"
]
StepState: TypeAlias = Literal[
    "waiting", "active", "delayed", "completed", "skipped", "failed", "cancelled", "unknown"
]


class FlowStatus(msgspec.Struct, frozen=True):
    """Where a flow is; `rollback` says something once it is `failed` or `cancelled`."""

    state: FlowState
    rollback: Rollback = "none"


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `attempts` counts the attempts that ended in an error, `error` is the last one's text.

    `started_ms` and `ended_ms` are Unix times of its last attempt, 0 while there is none.
    """

    step: str
    state: StepState
    result: Any = None
    attempts: int = 0
    error: str = ""
    started_ms: int = 0
    ended_ms: int = 0


class RollbackReport(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback that ran. `step` is a path for a step of a sub-workflow; `error` is empty if it went well."""

    step: str
    error: str = ""


class FlowReport(msgspec.Struct, frozen=True, kw_only=True):
    """One flow. `order` are the completed steps in order of completion; `rollbacks` in the order they ran.

    `run` counts from 1, and rises with each retry by hand; what is told is of the last one.
    """

    flow_id: str
    workflow: str
    state: FlowState
    run: int = 1
    rollback: Rollback = "none"
    steps: dict[str, StepReport] = {}
    order: list[str] = []
    rollbacks: list[RollbackReport] = []
    error: str = ""
    created_ms: int = 0
    ended_ms: int = 0


class FlowTree(msgspec.Struct, frozen=True, kw_only=True):
    """A flow with the flows of its sub-workflows, and the errors of attempts that were followed by another.

    `errors` has a list for each step that has some, oldest first, the newest 50, stalls among them; under the empty name those
    of the flow itself: of its `completed` hook, and of its earlier runs. `nested` has a list for each step that is a
    sub-workflow: the flow of each attempt.
    """

    report: FlowReport
    errors: dict[str, list[str]] = {}
    nested: dict[str, list[FlowTree]] = {}


class FlowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list of flows. `completed` counts the steps that did; times are Unix times in ms, or 0."""

    flow_id: str
    workflow: str
    state: FlowState
    run: int = 1
    rollback: Rollback = "none"
    completed: int = 0
    created_ms: int = 0
    ended_ms: int = 0
    error: str = ""
