"""The start of a sub-workflow: the root of its flow, from the context of the step that runs it."""

from __future__ import annotations

from typing import Any

from eventbus.lowlevel import Member, Policy
from workflows.definition.context import StepContext
from workflows.definition.job_tree import nested_message, nested_root
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.distributed.worker_runtime import Flow
from workflows.execution.step_runner import ask

__all__ = ["effective_timeout", "make_nested"]


async def make_nested(
    flow: Flow,
    step: Step[Any, Any],
    inner: Workflow[Any, Any],
    ctx: StepContext[Any],
    flow_id: str,
    *,
    up: Policy = "wake",
) -> Member:
    """Return the root of the flow `flow_id` of `inner`, which `step` runs. `up` as `Member` has it.

    Raises what the input function of the step raises, and PayloadError for an input that does not fit.
    """
    given = bytes(flow.message.input)
    codec = flow.runtime.codecs(inner).input
    if step.input is None:
        codec.decode(given)  # raises PayloadError if the outer input does not fit
    else:
        given = codec.encode(await ask(step.input, ctx))
    message = nested_message(
        flow.message,
        flow_id=flow.flow_id,
        job_id=ctx.job_id,
        given=given,
        version=inner.version,
        timeout=effective_timeout(inner.timeout, flow.runtime.services.settings.lease),
        traceparent=ctx.traceparent,
        types_=(inner.input, inner.output),
    )
    return nested_root(inner.name, flow_id, message, up=up)


def effective_timeout(timeout: float | None, lease: float) -> float | None:
    """Return the timeout that the server keeps: the lease is added, because a stalled worker may waste it."""
    return None if not timeout else timeout + lease
