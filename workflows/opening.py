"""Opening an inline flow: what a caller gives is checked, and becomes the facts of the flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from eventbus.lowlevel import Codec, Duration, current, seconds
from workflows.codecs import Codecs
from workflows.context import FlowFacts
from workflows.definition import Workflow
from workflows.inline import InlineFlow
from workflows.names import new_flow_id
from workflows.surroundings import Surroundings

__all__ = ["open_inline"]


def open_inline(
    workflow: Workflow[Any, Any],
    input: Any,  # noqa: A002  (as the workflow calls it)
    *,
    meta: Mapping[str, Any] | None = None,
    timeout: Duration | None = None,
    surroundings: Surroundings,
) -> InlineFlow:
    """Return a flow that has not begun.

    `timeout` overrides the workflow's; 0 is none. Meta and correlation of the caller are passed on, and
    `meta` wins. Raises DefinitionError for a workflow that cannot run, and PayloadError for an input or
    meta that does not fit.
    """
    workflow.check()
    codecs, ambient = Codecs(workflow), current()
    given = codecs.input.encode(input)
    meta_codec = Codec(dict[str, Any], role="meta", owner=workflow.name, max_bytes=codecs.max_bytes)
    flow_id = new_flow_id(workflow.name)
    facts = FlowFacts(
        flow_id=flow_id,
        meta=meta_codec.decode(meta_codec.encode({**(ambient.meta or {}), **(meta or {})})),
        correlation_id=ambient.correlation_id or flow_id,
        tracestate=ambient.tracestate,
    )
    limit = workflow.timeout if timeout is None else seconds(timeout, setting="timeout") or None
    around = msgspec.structs.replace(surroundings, traceparent=ambient.traceparent)
    return InlineFlow(workflow, given, facts, around, timeout=limit)
