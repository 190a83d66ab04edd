"""The spans of workflows: one for the start of a flow, one for each attempt of a step, rollback and hook.

All spans of a flow are in the trace of its caller, also after a crash or a retry by hand; a step's span links
to the spans of the steps that it waited for. Without an OpenTelemetry SDK there are no spans, and the trace
context is passed on unchanged. Names follow OpenTelemetry's conventions for messaging, like those of events.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from eventbus.lowlevel import Ambient, message_attributes, receive_span, traceparent_of, tracer

_propagator = TraceContextTextMapPropagator()


def flow_attributes(
    operation: str,
    kind: str,
    *,
    workflow: str,
    flow_id: str,
    job_id: str,
    correlation_id: str,
    client: str,
    url: str,
) -> dict[str, Any]:
    """Return the attributes of a flow's span; `kind` is `send` or `process`, `url` that of the provider's
    settings.
    """
    return message_attributes(
        operation,
        kind,
        destination=workflow,
        client=client,
        url=url,
        **{
            "messaging.message.id": job_id,
            "messaging.message.conversation_id": correlation_id,
            "workflows.workflow": workflow,
            "workflows.flow_id": flow_id,
        },
    )


def start_context(
    workflow: str, flow_id: str, ambient: Ambient, correlation_id: str, client: str, url: str
) -> tuple[str, str]:
    """Make the producer span of a new flow; return its `traceparent` and `tracestate`."""
    active = tracer()
    if active is None:
        return ambient.traceparent, ambient.tracestate
    attributes = flow_attributes(
        "execute",
        "send",
        workflow=workflow,
        flow_id=flow_id,
        job_id=flow_id,
        correlation_id=correlation_id,
        client=client,
        url=url,
    )
    span = active.start_span(f"execute {workflow}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    span.end()
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")


@contextmanager
def work_span(
    name: str, attributes: Mapping[str, Any], *, traceparent: str, tracestate: str, links: Iterable[str] = ()
) -> Generator[str]:
    """Open the span around one attempt; yield the `traceparent` for everything inside.

    `links` are the traceparents of the spans that this one follows. The span records an error raised inside.
    """
    active = tracer()
    if active is None:
        yield traceparent
        return
    linked = [link for earlier in links if (link := _link(earlier)) is not None]
    with receive_span(
        active, name, attributes, traceparent=traceparent, tracestate=tracestate, links=linked
    ) as span:
        yield traceparent_of(span)


def traceparent_around(otherwise: str) -> str:
    """Return the `traceparent` of the span around the caller; `otherwise` if there is none."""
    return otherwise if tracer() is None else traceparent_of(trace.get_current_span()) or otherwise


def _link(traceparent: str) -> trace.Link | None:
    if not traceparent:
        return None
    context = trace.get_current_span(
        _propagator.extract({"traceparent": traceparent}, Context())
    ).get_span_context()
    return trace.Link(context) if context.is_valid else None
