"""What the library itself reads of a context: its parts that are not for the functions of users.

Not here: the context (`definition.context`).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eventbus.lowlevel import Attempt, outside_job, trace_facts, trace_id_of
from workflows.definition.codecs import Codecs
from workflows.definition.contexts.flow_tools import FlowData, RemoteSteps
from workflows.definition.middleware import AttemptContext, AttemptKind, FlowMiddleware
from workflows.records.records import StepRecord

if TYPE_CHECKING:
    from workflows.definition.context import StepContext

__all__ = [
    "attempt_of",
    "codecs_of",
    "data_of",
    "keeping_lines_in",
    "loaded_of",
    "log_facts",
    "middleware_of",
    "remote_of",
    "without_results",
]


def data_of(ctx: StepContext[Any]) -> FlowData:
    """Return the place of the data that the functions of a flow share."""
    return ctx._data  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def keeping_lines_in(job_id: str, ctx: StepContext[Any]) -> StepContext[Any]:
    """Let the context of a rollback keep its log lines with another job than its own, which does not run any
    more; return it.
    """
    host = ctx._own.host  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    ctx._own = Attempt(host, outside_job(job_id), "")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return ctx


def without_results(ctx: StepContext[Any]) -> StepContext[Any]:
    """Return a context of the same job that belongs to no step, and has no results."""
    made = copy.copy(ctx)
    made.step = ""
    made._reach, made._records, made._values, made._log = (), {}, {}, None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return made


def codecs_of(ctx: StepContext[Any]) -> Codecs:
    """Return the codecs of the workflow that a context belongs to."""
    return ctx._codecs  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def remote_of(ctx: StepContext[Any]) -> RemoteSteps | None:
    """Return what runs the steps of a context's flow in processes, if anything does."""
    return ctx._tools.remote  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def middleware_of(ctx: StepContext[Any]) -> Sequence[FlowMiddleware]:
    """Return the functions around each attempt in a context's flow."""
    return ctx._tools.middleware  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def attempt_of(ctx: StepContext[Any], kind: AttemptKind) -> AttemptContext:
    """Return the facts about the attempt of a context for middleware."""
    return AttemptContext(
        kind,
        workflow=ctx.workflow,
        step=ctx.step,
        flow_id=ctx.flow_id,
        run=ctx.run,
        job_id=ctx.job_id,
        attempt=ctx.attempt,
        meta=ctx.meta,
        correlation_id=ctx.correlation_id,
        traceparent=ctx.traceparent,
    )


def loaded_of(
    ctx: StepContext[Any],
) -> tuple[Mapping[str, StepRecord], Collection[str], Attempt]:
    """Return what a context was made of: the loaded records in its reach, the steps that are not loaded, and
    what its attempt can do itself.
    """
    return ctx._loaded()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def log_facts(ctx: StepContext[Any]) -> dict[str, Any]:
    """Return the fields that identify a function of a workflow in its log events."""
    facts: dict[str, Any] = {"workflow": ctx.workflow, "flow_id": ctx.flow_id}
    if ctx.step:
        facts["step"] = ctx.step
    facts |= {"job_id": ctx.job_id, "attempt": ctx.attempt, "correlation_id": ctx.correlation_id}
    if ctx.worker:
        facts |= {"worker": ctx.worker, "provider": ctx.provider}
    if ctx.meta:
        facts["meta"] = dict(ctx.meta)
    return facts | trace_facts(trace_id_of(ctx.traceparent))
