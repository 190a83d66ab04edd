"""The start of a flow by another one: its root, and that of a sub-workflow from the context of the step that
runs it.
"""

from __future__ import annotations

from typing import Any

from eventbus.lowlevel import Member, Policy
from workflows.definition.context import StepContext
from workflows.definition.flow_definition import AnyDefinition, kind_of
from workflows.definition.job_tree import nested_message, nested_root
from workflows.definition.step import Step
from workflows.distributed.worker_runtime import Flow
from workflows.execution.apart_steps import input_of
from workflows.records.records import FlowMessage


async def make_nested(
    flow: Flow, step: Step[Any, Any], inner: AnyDefinition, ctx: StepContext[Any], flow_id: str
) -> Member:
    """Return the root of the flow `flow_id` of `inner`, which `step` runs.

    Raises what the input function of the step raises, and PayloadError for an input that does not fit.
    """
    given = await input_of(step, inner, ctx, bytes(flow.message.input))
    return flow_root(
        flow.message,
        inner,
        flow_id,
        starter=(flow.flow_id, ctx.job_id),
        given=given,
        timeout=effective_timeout(inner.timeout, flow.runtime.services.settings.lease),
        traceparent=ctx.traceparent,
        up="wake",
    )


def flow_root(
    outer: FlowMessage,
    inner: AnyDefinition,
    flow_id: str,
    *,
    starter: tuple[str, str],
    given: bytes,
    timeout: float | None,
    traceparent: str,
    up: Policy,
) -> Member:
    """Return the root of the flow `flow_id` of `inner`, with the input `given` and the effective `timeout`.

    `starter` is the flow that starts it, whose message is `outer`, and the job of that which does. `up` as
    `Member` has it.
    """
    message = nested_message(
        outer,
        flow_id=starter[0],
        job_id=starter[1],
        given=given,
        version="" if _is_stub(inner) else inner.version,
        timeout=timeout,
        traceparent=traceparent,
        types_=(inner.input, inner.output, getattr(inner, "state", None)),
        kind=kind_of(inner),
    )
    return nested_root(inner.name, flow_id, message, up=up)


def effective_timeout(timeout: float | None, lease: float) -> float | None:
    """Return the timeout that the server keeps: the lease is added, because a stalled worker may waste it."""
    return None if not timeout else timeout + lease


def _is_stub(inner: AnyDefinition) -> bool:
    """Tell whether only other processes know its steps, and so its version."""
    return kind_of(inner) == "graph" and not (inner.steps or inner.completed_hook)  # type: ignore[union-attr]
