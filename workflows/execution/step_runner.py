"""Running one step: its condition, its function and its record; and the decision about its error.

Not here: when a step runs, its timeout (`execution.attempt`), and storing its record.

What must always hold: distributed and inline flows both decide by `rule_of` and `judge`; a user's function
always has its own flow in its context variables, whoever called it (`Surrounded`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import msgspec

from eventbus import Retry
from eventbus.lowlevel import LONGEST, Ambient, current, enter, fact, hide_frames, is_final, with_facts
from workflows import errors
from workflows.definition.context import StepContext, codecs_of, log_facts
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.records.records import StepRecord, encode_step

__all__ = ["CallSync", "ask", "call", "decide", "is_wanted", "judge", "rule_of", "run_step"]

CallSync: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a plain function in a thread, in a copy of the caller's context."""

_ONCE = Retry(attempts=1)

hide_frames(errors.__file__)  # leaves the frames of this package out of the tracebacks that users get
JOB_ID, ATTEMPT, CORRELATION_ID, TRACE_ID = map(fact, ("job_id", "attempt", "correlation_id", "trace_id"))
WORKFLOW, FLOW_ID, STEP = map(fact, ("workflow", "flow_id", "step"))


async def run_step(step: Step[Any, Any], ctx: StepContext[Any], call_sync: CallSync) -> str:
    """Run a step that is not a sub-workflow once, and return its record as JSON text.

    If its condition is false, the step is recorded as skipped and its function is not called. Raises the
    errors of the condition and the function, and PayloadError for a result that does not fit the declared
    type.
    """
    if not await is_wanted(step, ctx):
        return encode_step(StepRecord(skipped=True, traceparent=ctx.traceparent))
    value = await call(step.function, ctx, is_async=step.is_async, call_sync=call_sync)
    result = codecs_of(ctx).result(step.name).encode(value)
    return encode_step(StepRecord(result=msgspec.Raw(result), traceparent=ctx.traceparent))


async def is_wanted(step: Step[Any, Any], ctx: StepContext[Any]) -> bool:
    """Evaluate the step's condition. A plain function is called in the event loop, so it must not block."""
    if step.when is None:
        return True
    return bool(await ask(step.when, ctx))


async def ask(function: Callable[..., Any], ctx: StepContext[Any]) -> Any:
    """Call a plain or async function without side effects, such as a condition, in the event loop."""
    with Surrounded(ctx):
        answer = function(ctx)
        return await answer if inspect.isawaitable(answer) else answer


async def call(
    function: Callable[..., Any],
    ctx: StepContext[Any],
    *arguments: Any,
    is_async: bool,
    call_sync: CallSync,
) -> Any:
    """Call a user's function with its context and `arguments`; a plain function runs in a thread."""
    with Surrounded(ctx):
        if is_async:
            return await function(ctx, *arguments)
        return await call_sync(lambda: function(ctx, *arguments))


class Surrounded:
    """Sets a flow's context variables around a user's function: for emissions, flows and log events inside.

    The job of a step has set the fields of log events already; they are then left unchanged.
    """

    __slots__ = ("_before", "_ctx", "_facts")

    def __init__(self, ctx: StepContext[Any]) -> None:
        self._ctx = ctx
        self._before = current()
        self._facts: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        ctx = self._ctx
        enter(Ambient(ctx.meta, ctx.correlation_id, ctx.job_id, ctx.traceparent, ctx.tracestate))
        if JOB_ID.get() != ctx.job_id or ATTEMPT.get() != ctx.attempt:
            self._facts = with_facts(log_facts(ctx))
            self._facts.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._facts is not None:
            self._facts.__exit__(None, None, None)
        enter(self._before)


def rule_of(workflow: Workflow[Any, Any], step: Step[Any, Any]) -> Retry:
    """Return the retry rule of a step: its own, or else the workflow's.

    A sub-workflow without a rule of its own runs once, because its steps have had their attempts and were
    undone.
    """
    return step.retry or (_ONCE if step.workflow is not None else workflow.retry)


def decide(
    rule: Retry, attempts: int, error: BaseException, workflow: Workflow[Any, Any] | None = None
) -> float | None:
    """Return the seconds to wait before the next attempt; None if the error is final.

    `attempts` counts the attempts that ended in an error, including this one. The declared errors of
    `workflow` are final, except those in its `retry_on`; `workflow` is None for rollbacks, which have no
    caller to answer. Raises the error of a custom retry strategy; that error is then the final one.
    """
    if is_final(error) or attempts >= rule.attempts or (workflow is not None and workflow.is_answer(error)):
        return None
    return min(rule.delay_after(attempts, error), LONGEST)


def judge(
    rule: Retry, attempts: int, error: BaseException, workflow: Workflow[Any, Any] | None = None
) -> tuple[float | None, BaseException]:
    """Decide as `decide` does; return also the error that counts: the retry strategy's own if it raised."""
    try:
        return decide(rule, attempts, error, workflow), error
    except Exception as own:  # noqa: BLE001  (a custom strategy of the user's)
        return None, own
