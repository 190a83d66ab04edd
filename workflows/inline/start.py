"""Starting an inline flow: checks the caller's arguments and makes the flow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventbus.lowlevel import Codec, Duration, current, seconds
from workflows.definition.codecs import Codecs
from workflows.definition.context import FlowFacts
from workflows.definition.signal import Signal
from workflows.definition.workflow import Workflow
from workflows.execution.environment import Environment
from workflows.inline.flow import InlineFlow
from workflows.inline.inbox import InlineInbox
from workflows.records.ids import new_flow_id

__all__ = ["open_inline"]


def open_inline(
    workflow: Workflow[Any, Any],
    input: Any,  # noqa: A002  (as the workflow calls it)
    *,
    meta: Mapping[str, Any] | None = None,
    timeout: Duration | None = None,
    environment: Environment,
    signals: Sequence[tuple[Signal[Any], Any]] = (),
    is_open: bool = True,
) -> InlineFlow:
    """Return an inline flow that has not begun.

    `timeout` overrides the workflow's timeout; 0 is none. The flow inherits meta and correlation id of the
    caller's context; `meta` overrides single keys. `signals` are in its inbox from the start, and with `is_open` others may
    follow. Raises DefinitionError for a workflow that cannot run, and PayloadError for an input, a meta or a signal that
    does not fit.
    """
    workflow.check()
    codecs, ambient = Codecs(workflow), current()
    given = codecs.input.encode(input)
    meta_codec = Codec(dict[str, Any], role="meta", owner=workflow.name, max_bytes=codecs.max_bytes)
    flow_id = new_flow_id(workflow.name)
    facts = FlowFacts(
        flow_id=flow_id,
        # Encoded and decoded, so that steps see the values that a distributed flow would give them.
        meta=meta_codec.decode(meta_codec.encode({**(ambient.meta or {}), **(meta or {})})),
        correlation_id=ambient.correlation_id or flow_id,
        tracestate=ambient.tracestate,
    )
    limit = workflow.timeout if timeout is None else seconds(timeout, setting="timeout") or None
    around = msgspec.structs.replace(environment, traceparent=ambient.traceparent)
    inbox = InlineInbox(signals, is_open=is_open)
    return InlineFlow(workflow, given, facts, around, timeout=limit, inbox=inbox)
