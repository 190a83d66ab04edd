"""Running one step: its condition, its function, its record; and what follows from an error.

Not here: when it runs, its timeout (`attempt`) and where its record is kept.

What must hold: both runs, in this process and distributed, judge by `rule_of` and `decide`; the code
of a user sees its own flow around it, whoever called (`surrounded`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from eventbus import Retry
from eventbus.lowlevel import LONGEST, Ambient, current, enter, is_final
from workflows.context import StepContext
from workflows.definition import Workflow
from workflows.records import StepRecord, encode_step
from workflows.step import Step

__all__ = ["CallSync", "ask", "call", "decide", "is_wanted", "judge", "rule_of", "run_step"]

CallSync: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a plain function in a thread, in a copy of the caller's context."""

_ONCE = Retry(attempts=1)


async def run_step(step: Step[Any, Any], ctx: StepContext[Any], call_sync: CallSync) -> str:
    """Run a step that is no sub-workflow once, and return its record as JSON text.

    A step whose condition is false is recorded as skipped, and its function not called. Raises what
    the condition or the function raises, and PayloadError for a result that is not of the declared type.
    """
    if not await is_wanted(step, ctx):
        return encode_step(StepRecord(skipped=True, traceparent=ctx.traceparent))
    value = await call(step.function, ctx, is_async=step.is_async, call_sync=call_sync)
    result = ctx.codecs.result(step.name).encode(value)
    return encode_step(StepRecord(result=msgspec.Raw(result), traceparent=ctx.traceparent))


async def is_wanted(step: Step[Any, Any], ctx: StepContext[Any]) -> bool:
    """Ask the step's condition. A plain function is called here, not in a thread: it must not block."""
    if step.when is None:
        return True
    return bool(await ask(step.when, ctx))


async def ask(function: Callable[..., Any], ctx: StepContext[Any]) -> Any:
    """Call a function without side effects, plain or async, such as a condition."""
    before = current()
    enter(surrounding(ctx))
    try:
        answer = function(ctx)
        return await answer if inspect.isawaitable(answer) else answer
    finally:
        enter(before)


async def call(
    function: Callable[..., Any],
    ctx: StepContext[Any],
    *arguments: Any,
    is_async: bool,
    call_sync: CallSync,
) -> Any:
    """Call a user's function with its context and `arguments`; plain ones run in a thread."""
    before = current()
    enter(surrounding(ctx))
    try:
        if is_async:
            return await function(ctx, *arguments)
        return await call_sync(lambda: function(ctx, *arguments))
    finally:
        enter(before)


def surrounding(ctx: StepContext[Any]) -> Ambient:
    """Return what emissions and flows started inside inherit."""
    return Ambient(ctx.meta, ctx.correlation_id, ctx.job_id, ctx.traceparent, ctx.tracestate)


def rule_of(workflow: Workflow[Any, Any], step: Step[Any, Any]) -> Retry:
    """Return the retry rule of a step: its own, else its workflow's.

    A sub-workflow runs once: its own steps have had their attempts, and were undone.
    """
    return step.retry or (_ONCE if step.workflow is not None else workflow.retry)


def decide(rule: Retry, attempts: int, error: BaseException) -> float | None:
    """Return the seconds to wait before the next attempt; None if the error is final.

    `attempts` counts those that ended in an error, this one included. An error of a custom
    strategy is raised, and is then the final one.
    """
    if is_final(error) or attempts >= rule.attempts:
        return None
    return min(rule.delay_after(attempts, error), LONGEST)


def judge(rule: Retry, attempts: int, error: BaseException) -> tuple[float | None, BaseException]:
    """Decide as `decide` does, and return the error that counts too: the strategy's own if it raised."""
    try:
        return decide(rule, attempts, error), error
    except Exception as own:  # noqa: BLE001  (a custom strategy of the user's)
        return None, own
