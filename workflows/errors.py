"""Every error that workflows add to the error tree of `eventbus`.

    EventBusError
    └── WorkflowError               every error that only `workflows` raises
        ├── FlowError               the recorded outcome of a flow that did not complete
        │   ├── StepError           a step failed for good, or the `completed` hook
        │   ├── FlowTimeout         not done within the flow's timeout
        │   └── FlowCancelled       cancelled on request
        ├── RollbackError           one rollback that failed for good
        ├── NonDeterminismError     a durable function does not do what it did before, or cannot
        │                           repeat what it does
        ├── HistoryFull             a flow of a durable function has recorded as much as it may
        ├── ConflictError           two steps of a pipeline that ran side by side wrote the same field
        ├── StepSkipped             a function asked for the result of a skipped step
        ├── StepFailed              a function asked for the result of a step whose failure is ignored
        ├── FlowNotEnded            the flow cannot be retried before it has ended
        ├── ResultNotLoaded         the result was not loaded before the step began
        └── StepNotFound            no such workflow or step is registered in this process

A wrong definition raises `eventbus.DefinitionError`, which names the workflow and the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from eventbus import EventBusError, StalledError, Unrecoverable, UsageError

__all__ = [
    "COMPLETED",
    "FUNCTION",
    "ConflictError",
    "FlowCancelled",
    "FlowError",
    "FlowNotEnded",
    "FlowTimeout",
    "HistoryFull",
    "NonDeterminismError",
    "ResultNotLoaded",
    "Rollback",
    "RollbackError",
    "StepError",
    "StepFailed",
    "StepNotFound",
    "StepSkipped",
    "WorkflowError",
]

Rollback: TypeAlias = Literal["none", "complete", "incomplete"]
"""The outcome of a stopped flow's rollbacks: none was needed, all succeeded, or one failed for good."""

COMPLETED = "__completed__"
"""The step that a StepError names when the `completed` hook failed; no step can have this name."""

FUNCTION = "__function__"
"""The step that a StepError names when the code of a durable function itself raised; no step can have this
name.
"""


class WorkflowError(EventBusError):
    """The root of the errors that workflows add."""


class RollbackError(WorkflowError):
    """The rollback of `step` failed for good; its last error is `error`, and the cause of this one.

    For a step of a sub-workflow, `step` is a path such as `"payment/charge"`. If `error` is a StalledError,
    there was no rollback: the step was interrupted while running, so its effect is unknown.
    """

    def __init__(self, *, step: str, error: BaseException) -> None:
        is_unknown = isinstance(error, StalledError)
        what = f"what step {step!r} did is unknown" if is_unknown else f"the rollback of step {step!r} failed"
        super().__init__(f"{what}: {_text(error)}")
        self.step = step
        self.error = error
        self.__cause__: BaseException | None = error


class FlowError(WorkflowError):
    """The recorded outcome of a flow that did not complete.

    `rollback` is `"none"` if there was nothing to undo, `"complete"` if every rollback succeeded, and
    `"incomplete"` if one failed for good or the effect of a step is unknown; `rollback_errors` are those
    failures, in the order in which they happened.
    """

    def __init__(
        self,
        message: str,
        *,
        flow_id: str,
        workflow: str,
        rollback: Rollback = "none",
        rollback_errors: Sequence[RollbackError] = (),
    ) -> None:
        super().__init__(message + _rollback_text(rollback, rollback_errors))
        self.flow_id = flow_id
        self.workflow = workflow
        self.rollback: Rollback = rollback
        self.rollback_errors: tuple[RollbackError, ...] = tuple(rollback_errors)


class StepError(FlowError):
    """The step `step` failed after its last attempt with `error`, which is the cause of this error.

    `error` is made from the recorded failure: a HandlerError, one of the workflow's declared `errors`, or a
    StalledError. `step` is `"__completed__"` for the `completed` hook. In a flow of a durable function it is
    the name and the position of the call, such as `"charge@2"`, and `"__function__"` if the code of the
    function itself raised.
    """

    def __init__(
        self,
        *,
        step: str,
        error: BaseException,
        flow_id: str,
        workflow: str,
        rollback: Rollback = "none",
        rollback_errors: Sequence[RollbackError] = (),
    ) -> None:
        what = {COMPLETED: "the completed hook", FUNCTION: "the function"}.get(step, f"step {step!r}")
        super().__init__(
            f"{what} of flow {flow_id} failed: {_text(error)}",
            flow_id=flow_id,
            workflow=workflow,
            rollback=rollback,
            rollback_errors=rollback_errors,
        )
        self.step = step
        self.error = error
        self.__cause__: BaseException | None = error


class FlowTimeout(FlowError):
    """The flow was not done within `timeout` seconds and was stopped.

    `timeout` is the effective timeout: the requested one plus the lease time, which a stalled worker may
    waste.
    """

    def __init__(
        self,
        *,
        timeout: float,
        flow_id: str,
        workflow: str,
        rollback: Rollback = "none",
        rollback_errors: Sequence[RollbackError] = (),
    ) -> None:
        super().__init__(
            f"flow {flow_id} timed out after {timeout:g} s",
            flow_id=flow_id,
            workflow=workflow,
            rollback=rollback,
            rollback_errors=rollback_errors,
        )
        self.timeout = timeout


class FlowCancelled(FlowError):
    """The flow was cancelled. `reason` is the text that the canceller gave, or empty."""

    def __init__(
        self,
        *,
        flow_id: str,
        workflow: str,
        reason: str = "",
        rollback: Rollback = "none",
        rollback_errors: Sequence[RollbackError] = (),
    ) -> None:
        super().__init__(
            f"flow {flow_id} was cancelled" + (f": {reason}" if reason else ""),
            flow_id=flow_id,
            workflow=workflow,
            rollback=rollback,
            rollback_errors=rollback_errors,
        )
        self.reason = reason


class StepSkipped(WorkflowError):
    """`step` of `workflow` has no result: its `when` was false, or the flow stopped before it completed."""

    def __init__(self, *, step: str, workflow: str, reason: str = "was skipped") -> None:
        super().__init__(
            f"step {step!r} of workflow {workflow!r} {reason}, so it has no result; "
            f"give a default: ctx.result({step!r}, default=None)"
        )
        self.step = step
        self.workflow = workflow


class StepFailed(WorkflowError):
    """`step` of `workflow` has no result: it failed for good with `error`, and `on_failure="ignore"` lets the
    flow go on.

    `error` is made from the recorded failure, as that of a StepError is, and is the cause of this one. For an
    item of an each step, `step` has its number, such as `convert[3]`; it stands in the list of the results
    and is not raised.
    """

    def __init__(self, *, step: str, workflow: str, error: BaseException, is_item: bool = False) -> None:
        advice = "" if is_item else f"; give a default: ctx.result({step!r}, default=None)"
        super().__init__(
            f"step {step!r} of workflow {workflow!r} failed, so it has no result: {_text(error)}{advice}"
        )
        self.step = step
        self.workflow = workflow
        self.error = error
        self.__cause__: BaseException | None = error


class ConflictError(WorkflowError, Unrecoverable):
    """The `steps` of a pipeline ran side by side, and both wrote the field `key`: which one is to count is
    unknown.

    Give the field another name in one of them, or let one run after the other.
    """

    def __init__(self, key: str, steps: Sequence[str], workflow: str) -> None:
        super().__init__(
            key, list(steps), workflow
        )  # its record has them: the caller of the flow gets this very error
        first, second = steps
        self.key = key
        self.steps: tuple[str, str] = (first, second)
        self.workflow = workflow

    def __str__(self) -> str:
        first, second = self.steps
        return (
            f"steps {first!r} and {second!r} of pipeline {self.workflow!r} ran side by side, "
            f"and both gave the field {self.key!r}; "
            "give it another name in one of them, or let one run after the other"
        )


class NonDeterminismError(WorkflowError, UsageError):
    """A durable function does not do what its flow has recorded, or does what cannot be repeated.

    `flow_id` is empty if there is no flow. `position` is the place of the call in the function; `recorded`
    and `asked` say what the flow did there, and what the function does there now. They are empty if nothing
    is recorded at that place.
    """

    def __init__(
        self, message: str, *, flow_id: str = "", position: str = "", recorded: str = "", asked: str = ""
    ) -> None:
        super().__init__(message)
        self.flow_id = flow_id
        self.position = position
        self.recorded = recorded
        self.asked = asked


class HistoryFull(WorkflowError):
    """The flow has recorded `entries` entries of `size` bytes, as much as it may, so it can record no further
    call.

    Use `ctx.continue_as_new(input)` before that, when `ctx.history_is_long` is true.
    """

    def __init__(self, *, flow_id: str, entries: int, size: int) -> None:
        super().__init__(
            f"flow {flow_id} has recorded {entries} entries of {size} bytes, as much as it may; "
            "call ctx.continue_as_new(input) when ctx.history_is_long is true"
        )
        self.flow_id = flow_id
        self.entries = entries
        self.size = size


class FlowNotEnded(WorkflowError):
    """The flow `flow_id` has not ended, it is `state`; another caller may just have retried it."""

    def __init__(self, *, flow_id: str, state: str, advice: str = "") -> None:
        """`advice` says what to do, in place of what fits most flows."""
        told = advice or "only a flow that has ended can be retried: wait for its end, or cancel it"
        super().__init__(f"flow {flow_id} is {state.replace('_', ' ')}; {told}")
        self.flow_id = flow_id
        self.state = state


class ResultNotLoaded(WorkflowError, UsageError):
    """The result of `step` was not loaded before this step began; use `await ctx.load(step)`.

    Only an async function can do that: a plain function runs in a thread and cannot await.
    """

    def __init__(self, *, step: str, workflow: str = "") -> None:
        owner = f" of workflow {workflow!r}" if workflow else ""
        super().__init__(
            f"the result of step {step!r}{owner} was not loaded beforehand, because many or large results "
            f"precede this step; use `await ctx.load({step!r})` in an async function: a plain one cannot, "
            "so make it `async def`"
        )
        self.step = step
        self.workflow = workflow


class StepNotFound(WorkflowError):
    """`workflow`, or its `step`, is not registered in this process.

    `step` is empty if a workflow was not found; `known` lists what is registered instead.
    """

    def __init__(self, *, workflow: str, step: str = "", version: str | None = None, known: str = "") -> None:
        exact = f" in version {version!r}" if version is not None else ""
        what = f"step {step!r} of workflow {workflow!r}" if step else f"workflow {workflow!r}"
        hint = f"; known here: {known}" if known else ""
        super().__init__(
            f"{what}{exact} is not registered in this process{hint}; register the workflow first"
        )
        self.workflow = workflow
        self.step = step
        self.version = version
        self.known = known


def _text(error: BaseException) -> str:
    """Return the error's text, with its type if it has no text or is not an error of these packages."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  (the user's `__str__`)
        text = ""
    if isinstance(error, EventBusError) and text:
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _rollback_text(rollback: Rollback, errors: Sequence[RollbackError]) -> str:
    if rollback != "incomplete":
        return ""
    return "; rollback incomplete" + "".join(f"; {error}" for error in errors)
