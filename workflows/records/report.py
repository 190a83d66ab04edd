"""Reports of flows as plain values: the state of a flow, its steps and its rollbacks.

Distributed and inline flows have the same reports, so that tests and tools can read both.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from workflows.errors import Rollback

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
    not fit the type that is registered here, it is None, and `error` says so. `progress` is what the attempt
    that runs has told last with `ctx.progress`, None if none runs or it has told nothing. That of a
    sub-workflow is a dict with the progress of its steps, by name. `items` counts the items of a step that
    runs for each item of a list, by their state, as far as it is recorded. `started_ms` and `ended_ms` are
    Unix times in milliseconds of the last attempt, 0 if there is none.
    """

    step: str
    state: StepState
    result: Any = None
    attempts: int = 0
    error: str = ""
    progress: Any = None
    items: dict[str, int] = {}
    started_ms: int = 0
    ended_ms: int = 0


class RollbackReport(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback that ran. `step` is a path for a sub-workflow's step; `error` is empty on success."""

    step: str
    error: str = ""


class MoveReport(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the history of a state machine: a `move`, an attempt that failed (`try`, or `failed` for
    good), a `refused` trigger, or a `retry`.

    `version` is the number of moves that it had made then. A move without a `transition` was made by hand.
    `at_ms` is a Unix time.
    """

    kind: str
    transition: str
    source: str
    target: str
    version: int
    attempts: int = 0
    error: str = ""
    at_ms: int = 0


class MachineReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where a state machine stands. `version` counts its moves; `place` is `__end__` at the end, and empty
    before a worker has begun.

    `state` and `documents` are JSON values as the last move recorded them. `accepts` names the transitions
    that may be triggered now, `children` the flows that it awaits, and `moves` is the newest part of its
    history. `entered_ms` is when it came to its place, and `due_ms` when the next attempt or the first
    delayed transition is due there (0: none is), as Unix times in ms.
    """

    place: str
    version: int = 0
    entered_ms: int = 0
    due_ms: int = 0
    state: Any = None
    documents: dict[str, Any] = {}
    accepts: list[str] = []
    children: list[str] = []
    moves: list[MoveReport] = []


class FlowReport(msgspec.Struct, frozen=True, kw_only=True):
    """One flow. `order` names the completed steps in order of completion; `rollbacks` are in running order.
    Those of a nested flow that completed are what the flow around it has undone of it; in the tree of that
    flow they stand there alone.

    `run` counts from 1 and rises with each retry by hand; the report is about the last run. If the flow of a
    sub-workflow cannot be read, it has no steps, and its `error` says why. `version` is that of its workflow,
    empty until a worker has chosen it. A flow that `is_parked` waits for a worker that can run it, and
    `error` says why none of those that tried can. `created_ms` and `ended_ms` are Unix times in milliseconds,
    or 0. The flow of a state machine has a `machine`, and its steps are the transitions that fired; while it
    waits, `error` is that of the transition that failed last. `kept_signals` counts the signals, by name,
    that the flow was sent and that nobody waits for now: they came early, or under a wrong name, or the flow
    ended without them.

    `input` and `output` are JSON values, and so is `own_state`, what the code of a durable function set last
    as `ctx.state`; that of a state machine stands in its `machine`. They are None where there is none, or it
    cannot be read. What is marked as Sensitive is hidden in them: the program reads `handle.result()` and
    `handle.state()`, and `inspector.jobs.get(flow_id, reveal=True)` shows it. Of a flow inside a tree, values
    of more than 16 KiB are left out, and `left_out` names them; its own report has them.
    """

    flow_id: str
    workflow: str
    state: FlowState
    run: int = 1
    version: str = ""
    rollback: Rollback = "none"
    steps: dict[str, StepReport] = {}
    order: list[str] = []
    rollbacks: list[RollbackReport] = []
    is_parked: bool = False
    error: str = ""
    created_ms: int = 0
    ended_ms: int = 0
    machine: MachineReport | None = None
    kept_signals: dict[str, int] = {}
    input: Any = None
    output: Any = None
    own_state: Any = None
    left_out: list[str] = []


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
    `version` is that of the workflow, empty until a worker has chosen it.

    A flow that `is_parked` waits for a worker that can run it; `error` says why none of those that tried can.
    """

    flow_id: str
    workflow: str
    state: FlowState
    run: int = 1
    version: str = ""
    rollback: Rollback = "none"
    completed: int = 0
    is_parked: bool = False
    created_ms: int = 0
    ended_ms: int = 0
    error: str = ""


class FlowPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of flows: open ones first, then ended ones, the newest first in both. `cursor` leads
    to the next page, empty at the end. `seen` is how many flows were looked at; with a filter a page may have
    few flows, or none, and a cursor.
    """

    flows: list[FlowSummary]
    cursor: str = ""
    seen: int = 0


class FlowWait(msgspec.Struct, frozen=True, kw_only=True):
    """What an open flow waits for: the `signal`, or a time if that is empty. Times are Unix times in ms,
    `until_ms` 0 for none.

    `place` is the name of the step, or the position of the call in a durable function.
    """

    place: str
    signal: str = ""
    since_ms: int = 0
    until_ms: int = 0


class FlowVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a workflow: how many of its flows are open, and how many live workers can run them.

    `is_newest` tells that a live worker registered it last, so that new flows use it. `is_exact` is False if
    there are more open flows than were looked at. A version is empty if no worker has chosen it yet.
    """

    workflow: str
    version: str
    open: int = 0
    workers: int = 0
    is_newest: bool = False
    is_exact: bool = True


def nested_progress(report: FlowReport) -> dict[str, Any] | None:
    """Return the progress of the step that is a sub-workflow, from the report of its flow; None if no step
    told any.
    """
    return {name: step.progress for name, step in report.steps.items() if step.progress is not None} or None
