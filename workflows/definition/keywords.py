"""The options of workflows and steps, as keyword arguments.

What must always hold: an option is named in one place, and that place gives its type to every function that
takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar

from eventbus import Limit, Retry
from eventbus.lowlevel import Duration
from workflows.definition.checks.options import OnFailure
from workflows.definition.context import StepContext
from workflows.definition.flow_definition import FlowKeywords
from workflows.definition.signal import Signal

I = TypeVar("I")  # noqa: E741  (the input of the workflow)


class WorkflowKeywords(FlowKeywords, total=False):
    """The options of a workflow; `Workflow` documents each of them."""

    retry: Retry | None
    spread: bool
    errors: Sequence[type[Exception]]
    retry_on: Sequence[type[Exception]]


class DurableKeywords(FlowKeywords, total=False):
    """The options of a durable function; `durable` documents each of them."""

    output: Any
    state: Any
    retry: Retry | None
    errors: Sequence[type[Exception]]
    retry_on: Sequence[type[Exception]]
    signals: Sequence[Signal[Any]] | None
    max_history: int


class MachineKeywords(FlowKeywords, total=False):
    """The options of a state machine; `StateMachine` documents each of them."""

    max_rollbacks: int


class StartKeywords(TypedDict, total=False):
    """The options of a new flow; `WorkflowProvider.execute` documents each of them."""

    idempotency_key: str | None
    timeout: Duration | None
    delay: Duration | None
    priority: int
    meta: Mapping[str, Any] | None
    correlation_id: str | None
    reuse_failure: bool
    supersede: bool
    require_worker: bool
    keep_completed: Duration | None
    keep_failed: Duration | None
    call_timeout: Duration | None


class StepKeywords(TypedDict, Generic[I], total=False):
    """The options of a step; `Workflow.step` documents each of them."""

    name: str | None
    retry: Retry | None
    timeout: Duration | None
    concurrency: int | None
    limit: Limit | None
    when: Callable[[StepContext[I]], Any] | None
    rollback_on_failure: bool
    pool: str | None
    spread: bool
    on_failure: OnFailure


class EachKeywords(TypedDict, Generic[I], total=False):
    """The options of a step that runs for each item of a list; `Workflow.each` documents each of them."""

    name: str | None
    retry: Retry | None
    timeout: Duration | None
    concurrency: int | None
    limit: Limit | None
    when: Callable[[StepContext[I]], Any] | None
    rollback_on_failure: bool
    spread: bool


class PauseKeywords(TypedDict, Generic[I], total=False):
    """The options of a step that waits; `Workflow.wait` documents each of them."""

    name: str | None
    when: Callable[[StepContext[I]], Any] | None


class PipelineKeywords(TypedDict, total=False):
    """The options of a step of a pipeline; `Workflow.step` documents each of them."""

    name: str | None
    retry: Retry | None
    timeout: Duration | None
    concurrency: int | None
    limit: Limit | None
    rollback_on_failure: bool
    pool: str | None
    spread: bool
    on_failure: OnFailure


class SignalKeywords(TypedDict, total=False):
    """The options of a signal; `FlowHandle.signal` documents each of them."""

    signal_id: str | None
    call_timeout: Duration | None


class TriggerKeywords(TypedDict, total=False):
    """The options of a trigger; `FlowHandle.trigger` documents each of them."""

    trigger_id: str | None
    call_timeout: Duration | None
