"""Starting a flow: its message, what its key does, and what a caller is told if the flow may not have been
started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from eventbus import DefinitionError, EmitError, EventProvider, NoWorker
from eventbus.lowlevel import JOIN, REUSE, SUPERSEDE, Codec, baggage_around, current, shown
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.workflow import Workflow
from workflows.execution.spans import start_context
from workflows.functions.definition import Durable
from workflows.machines.definition import MachineDefinition
from workflows.records.records import FlowMessage, hidden_in


def not_started(error: EmitError, flow_id: str, *, is_keyed: bool) -> EmitError:
    """Return `error` with the remedy for a caller of flows: how to find out whether the flow was started."""
    if isinstance(error, NoWorker):
        return error  # which says what to do
    again = "execute it again: with its idempotency_key that gives the one flow there is"
    if error.enqueued is False:
        remedy = "execute it again"
    elif is_keyed:
        remedy = again
    else:
        remedy = f"`await flows.handle({flow_id!r}).status()` tells, and raises UnknownJob if it was not"
    return EmitError(f"{error}; {remedy}", event=error.event, job_id=error.job_id, enqueued=error.enqueued)


def check_flag(flag: object, option: str) -> bool:
    """Return `flag` if it is True or False. Raises DefinitionError otherwise."""
    if not isinstance(flag, bool):
        raise DefinitionError(f"expected {option} to be True or False, got: {shown(flag)}")
    return flag


def meeting_of(key: str | None, *, reuse_failure: bool, supersede: bool) -> int:
    """Return what a new flow does when its key has a flow already. Raises DefinitionError for options that
    exclude each other.
    """
    if supersede and reuse_failure:
        raise DefinitionError("expected either supersede or reuse_failure, got both")
    if supersede and key is None:
        raise DefinitionError("supersede needs an idempotency_key")
    return SUPERSEDE if supersede else REUSE if reuse_failure else JOIN


def message_of(
    provider: EventProvider,
    workflow: AnyDefinition,
    flow_id: str,
    given: bytes,
    meta: Mapping[str, Any] | None,
    chain: str,
    key: str | None,
    timeout: float | None,
) -> FlowMessage:
    """Return the message of a new flow; `chain` is the correlation id that its caller gives, `''` for none.
    Raises DefinitionError, PayloadError.
    """
    ambient = current()
    correlation_id = chain or ambient.correlation_id or flow_id
    settings = provider.settings
    traceparent, tracestate = start_context(
        workflow.name, flow_id, ambient, correlation_id, settings.name, settings.url
    )
    if meta is not None and not isinstance(meta, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"expected meta of workflow {workflow.name!r} to be a dict, got: {shown(meta)}")
    merged = {**(ambient.meta or {}), **(meta or {})}
    if merged:
        limit = int(provider.settings.max_payload)
        Codec(dict[str, Any], role="meta", owner=workflow.name, max_bytes=limit).encode(merged)
    # Without steps here the worker chooses the version, too.
    is_graph = isinstance(workflow, Workflow)
    is_unknown = is_graph and not workflow.steps and workflow.completed_hook is None
    return FlowMessage(
        input=msgspec.Raw(given),
        version="" if is_unknown else workflow.version,
        meta=merged or None,
        correlation_id=correlation_id,
        causation_id=ambient.job_id,
        traceparent=traceparent,
        tracestate=tracestate,
        key=key or "",
        timeout=timeout,
        bare=not is_graph or is_unknown or not workflow.spreads or workflow.listens,
        durable=isinstance(workflow, Durable),
        machine=isinstance(workflow, MachineDefinition),
        baggage=baggage_around(),
        hidden=hidden_in(workflow.input, workflow.output, getattr(workflow, "state", None)),
    )
