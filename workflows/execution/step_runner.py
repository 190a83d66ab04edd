"""Running one step: its condition, its function and its record; and the decision about its error.

Not here: when a step runs, its timeout (`execution.attempt`), and storing its record.

What must always hold: distributed and inline flows both decide by `rule_of` and `judge`; a user's function
always has its own flow in its context variables, whoever called it (`Surrounded`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from eventbus import Later, PayloadError, Retry
from eventbus.lowlevel import (
    LONGEST,
    Ambient,
    contained,
    contained_await,
    current,
    describe,
    ends_attempts,
    enter,
    fact,
    get_logger,
    hide_frames,
    log_failure,
    original,
    with_facts,
)
from workflows import errors
from workflows.definition.checks.declared_errors import is_last, mark_last
from workflows.definition.context import (
    StepContext,
    attempt_of,
    codecs_of,
    data_of,
    log_facts,
    middleware_of,
    remote_of,
    without_results,
)
from workflows.definition.each import EachStep, read_items
from workflows.definition.flow_tools import CallSync, RemoteSteps
from workflows.definition.middleware import AttemptKind, through
from workflows.definition.outline import HookName
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.execution.environment import in_thread
from workflows.records.records import StepRecord


class Answering(Protocol):
    """A workflow of any kind, as far as it says which errors are answers."""

    def is_answer(self, error: BaseException) -> bool:
        """Tell whether `error` is a declared error that is not retried."""
        ...


_ONCE = Retry(attempts=1)

_log = get_logger("workflows")

hide_frames(errors.__file__)  # leaves the frames of this package out of the tracebacks that users get
JOB_ID, ATTEMPT, CORRELATION_ID, TRACE_ID = map(fact, ("job_id", "attempt", "correlation_id", "trace_id"))
WORKFLOW, FLOW_ID, STEP = map(fact, ("workflow", "flow_id", "step"))


async def run_step(step: Step[Any, Any], ctx: StepContext[Any], call_sync: CallSync) -> StepRecord:
    """Run a step that is not a sub-workflow once, with the hooks around it, and return its record.

    If its condition is false, the step is recorded as skipped and its function is not called. Raises the
    errors of the condition and the function, and PayloadError for a result that does not fit the declared
    type.
    """
    codecs = codecs_of(ctx)
    hooks = codecs.workflow.hooks
    try:
        if "data" in hooks:
            await _make_data(ctx, call_sync)
        if step.when is not None and not await is_wanted(step, ctx):
            return StepRecord(skipped=True, traceparent=ctx.traceparent)
        if step.pause is not None:  # only its condition is asked here
            return StepRecord(traceparent=ctx.traceparent)
        if isinstance(step, EachStep):  # its items are steps of their own
            return await _list_items(step, ctx)
        if "before_each" in hooks:
            await _call_hook("before_each", ctx, call_sync=call_sync)
        remote = None if step.pool is None or step.pool == "thread" else remote_of(ctx)
        run_sync = call_sync if remote is None else _in_pool(remote, step, ctx)
        codec = codecs.result(step.name)
        value = await call(step.function, ctx, is_async=step.is_async, call_sync=run_sync)
        if "after_each" in hooks:
            await _call_hook("after_each", ctx, value, call_sync=call_sync)
        result = codec.encode(value)
    except Later:
        raise
    except Exception as error:
        if await _is_final(error, ctx, call_sync):
            mark_last(error)
        raise
    return StepRecord(result=msgspec.Raw(result), traceparent=ctx.traceparent)


async def _list_items(step: EachStep[Any, Any], ctx: StepContext[Any]) -> StepRecord:
    over = step.over
    given = await ask(over, ctx) if callable(over) else None  # its own errors are tried again
    try:
        value = given if callable(over) else _list_of(step, over, ctx)
        items = read_items(step, value, ctx)
    except PayloadError as error:
        mark_last(error)  # the next attempt would get the same list
        raise
    return StepRecord(result=msgspec.Raw(items), traceparent=ctx.traceparent)


def _list_of(step: EachStep[Any, Any], over: str, ctx: StepContext[Any]) -> Any:
    try:
        return ctx.result(over)
    except (errors.StepSkipped, errors.StepFailed) as error:
        raise PayloadError(
            f"{step.where} runs over step {over!r}, which has no list: {error}; to run over another list "
            f"then, use `over=lambda ctx: ctx.result({over!r}, default=[])`"
        ) from error


def _in_pool(remote: RemoteSteps, step: Step[Any, Any], ctx: StepContext[Any]) -> CallSync:
    async def run(call: Callable[[], Any]) -> Any:
        return await remote.run(step, ctx, call)

    return run


async def _call_hook(name: HookName, ctx: StepContext[Any], *arguments: Any, call_sync: CallSync) -> Any:
    hook = codecs_of(ctx).workflow.hooks.get(name)
    if hook is None:
        return None
    return await _call(hook.function, ctx, *arguments, is_async=hook.is_async, call_sync=call_sync)


async def _is_final(error: Exception, ctx: StepContext[Any], call_sync: CallSync) -> bool:
    """Ask the `on_error` hook whether an error is final. Its own error is logged, and changes nothing."""
    try:
        return await _call_hook("on_error", ctx, original(error), call_sync=call_sync) is False
    except Exception as own:  # noqa: BLE001  (the error of the step must reach its record)
        log_failure(_log, "on_error hook raised", describe(own, attempts=1), log_facts(ctx))
        return False


async def _make_data(ctx: StepContext[Any], call_sync: CallSync) -> None:
    """Make the data that the functions of the flow share, unless this activation has it. Raises what its
    function raises.
    """
    hook, data = codecs_of(ctx).workflow.hooks.get("data"), data_of(ctx)
    if hook is None or data.has_value:
        return
    async with data.lock:  # two steps may begin at a time
        if not data.has_value:
            data.value = await _call(
                hook.function, without_results(ctx), is_async=hook.is_async, call_sync=call_sync
            )
            data.has_value = True


async def is_wanted(step: Step[Any, Any], ctx: StepContext[Any]) -> bool:
    """Evaluate the step's condition. A plain function is called in the event loop, so it must not block."""
    if step.when is None:
        return True
    return bool(await ask(step.when, ctx))


async def ask(function: Callable[..., Any], ctx: StepContext[Any]) -> Any:
    """Call a plain or async function without side effects, such as a condition, in the event loop."""
    await _make_data(ctx, in_thread)
    with Surrounded(ctx):
        answer = contained(function, ctx)
        return await contained_await(answer) if inspect.isawaitable(answer) else answer


def call(
    function: Callable[..., Any],
    ctx: StepContext[Any],
    *arguments: Any,
    is_async: bool,
    call_sync: CallSync,
    kind: AttemptKind = "step",
) -> Coroutine[Any, Any, Any]:
    """Call a user's function with its context and `arguments`, through the middleware; a plain one runs in a
    thread.

    The middleware gets the last argument, or for want of one the input of the flow.
    """
    if not middleware_of(ctx) and "data" not in codecs_of(ctx).workflow.hooks:
        return _call(function, ctx, *arguments, is_async=is_async, call_sync=call_sync)
    return _call_through(function, ctx, arguments, is_async, call_sync, kind)


async def _call_through(
    function: Callable[..., Any],
    ctx: StepContext[Any],
    arguments: tuple[Any, ...],
    is_async: bool,
    call_sync: CallSync,
    kind: AttemptKind,
) -> Any:
    """Call a function with the data that it shares, and through the middleware."""
    await _make_data(ctx, call_sync)

    async def go_on() -> Any:
        return await _invoke(function, ctx, arguments, is_async, call_sync)

    middleware = middleware_of(ctx)
    with Surrounded(ctx):
        return await through(middleware, attempt_of(ctx, kind), (ctx.input, *arguments)[-1], go_on)


async def _call(
    function: Callable[..., Any], ctx: StepContext[Any], *arguments: Any, is_async: bool, call_sync: CallSync
) -> Any:
    """Call a function without the middleware."""
    with Surrounded(ctx):
        return await _invoke(function, ctx, arguments, is_async, call_sync)


def _invoke(
    function: Callable[..., Any],
    ctx: StepContext[Any],
    arguments: tuple[Any, ...],
    is_async: bool,
    call_sync: CallSync,
) -> Awaitable[Any]:
    if is_async:
        return contained_await(function(ctx, *arguments))
    return call_sync(lambda: function(ctx, *arguments))


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
    rule: Retry,
    attempts: int,
    error: BaseException,
    workflow: Answering | None = None,
    *,
    is_undo: bool = False,
) -> float | None:
    """Return the seconds to wait before the next attempt; None if the error is final.

    `attempts` counts the attempts that ended in an error, including this one. The declared errors of
    `workflow` are final, except those in its `retry_on`; `workflow` is None for rollbacks, which have no
    caller to answer. So is the failure of a job that the code awaited, except in a rollback (`is_undo`),
    which must be done. Raises the error of a custom retry strategy; that error is then the final one.
    """

    def is_end(one: BaseException) -> bool:
        return is_last(one) or (workflow is not None and workflow.is_answer(one))

    if attempts >= rule.attempts or ends_attempts(error, rule, is_end, is_undo=is_undo):
        return None
    return min(rule.delay_after(attempts, error), LONGEST)


def judge(
    rule: Retry,
    attempts: int,
    error: BaseException,
    workflow: Answering | None = None,
    *,
    is_undo: bool = False,
) -> tuple[float | None, BaseException]:
    """Decide as `decide` does; return also the error that counts: the retry strategy's own if it raised."""
    try:
        return decide(rule, attempts, error, workflow, is_undo=is_undo), error
    except Exception as own:  # noqa: BLE001  (a custom strategy of the user's)
        return None, own
