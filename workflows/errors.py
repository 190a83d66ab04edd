"""Every error that workflows add to the error tree of `eventbus`.

    EventBusError
    └── WorkflowError               every error that only `workflows` raises
        ├── FlowError               the recorded outcome of a flow that did not complete
        │   ├── StepError           a step failed for good, or the `completed` hook
        │   ├── FlowTimeout         not done within the flow's timeout
        │   └── FlowCancelled       cancelled on request
        ├── RollbackError           one rollback that failed for good
        ├── StepSkipped             a function asked for the result of a skipped step
        ├── FlowNotEnded            the flow cannot be retried before it has ended
        ├── ResultNotLoaded         the result was not loaded before the step began
        └── StepNotFound            no such workflow or step is registered in this process

A wrong definition raises `eventbus.DefinitionError`, which names the workflow and the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from eventbus import EventBusError, StalledError, UsageError

__all__ = [
    "COMPLETED",
    "FlowCancelled",
    "FlowError",
    "FlowNotEnded",
    "FlowTimeout",
    "ResultNotLoaded",
    "Rollback",
    "RollbackError",
    "StepError",
    "StepNotFound",
    "StepSkipped",
    "WorkflowError",
]

Rollback: TypeAlias = Literal["none", "complete", "incomplete"]
"""The outcome of a stopped flow's rollbacks: none was needed, all succeeded, or one failed for good."""

COMPLETED = "__completed__"
"""The step that a StepError names when the `completed` hook failed; no step can have this name."""


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
    StalledError. `step` is `"__completed__"` for the `completed` hook.
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
        what = "the completed hook" if step == COMPLETED else f"step {step!r}"
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


class FlowNotEnded(WorkflowError):
    """The flow `flow_id` has not ended, it is `state`; another caller may just have retried it."""

    def __init__(self, *, flow_id: str, state: str) -> None:
        super().__init__(
            f"flow {flow_id} is {state}; only a flow that has ended can be retried: wait for its end, or cancel it"
        )
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
    if isinstance(error, EventBusError) and str(error):
        return str(error)
    name = type(error).__name__
    return f"{name}: {error}" if str(error) else name


def _rollback_text(rollback: Rollback, errors: Sequence[RollbackError]) -> str:
    if rollback != "incomplete":
        return ""
    return "; rollback incomplete" + "".join(f"; {error}" for error in errors)
