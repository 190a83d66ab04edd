"""The spans of workflows: one for the start of a flow, one for each attempt of a step, rollback and hook.

All of a flow are in the trace of whoever started it, also after a crash and by hand; a step's span
links to those of the steps that it waited for. Without an SDK there are no spans, and the context
travels as it came.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from eventbus.lowlevel import Ambient, tracer

__all__ = ["start_context", "work_span"]

_propagator = TraceContextTextMapPropagator()


def start_context(workflow: str, flow_id: str, ambient: Ambient) -> tuple[str, str]:
    """Return `traceparent` and `tracestate` of a new flow; makes its producer span."""
    active = tracer()
    if active is None:
        return ambient.traceparent, ambient.tracestate
    attributes = _attributes(workflow, flow_id)
    span = active.start_span(f"execute {workflow}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
    carrier = _carrier(span)
    span.end()
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")


@contextmanager
def work_span(
    what: str,
    *,
    workflow: str,
    flow_id: str,
    traceparent: str,
    tracestate: str,
    attempt: int,
    step: str = "",
    links: Iterable[str] = (),
) -> Generator[str]:
    """The span around one attempt of `what`; yields the `traceparent` of what happens inside.

    `links` are traceparents of the spans that it follows. Records what is raised inside.
    """
    active = tracer()
    if active is None:
        yield traceparent
        return
    parent = _propagator.extract({"traceparent": traceparent, "tracestate": tracestate}, Context())
    attributes: dict[str, Any] = {**_attributes(workflow, flow_id), "eventbus.attempt": attempt}
    if step:
        attributes["workflows.step"] = step
    with active.start_as_current_span(
        f"{what} {workflow}{'.' if step else ''}{step}",
        context=parent,
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=[link for each in links if (link := _link(each)) is not None],
    ) as span:
        yield _carrier(span).get("traceparent", "")


def _attributes(workflow: str, flow_id: str) -> dict[str, str]:
    return {"workflows.workflow": workflow, "workflows.flow_id": flow_id}


def _carrier(span: trace.Span) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier


def _link(traceparent: str) -> trace.Link | None:
    if not traceparent:
        return None
    context = trace.get_current_span(
        _propagator.extract({"traceparent": traceparent}, Context())
    ).get_span_context()
    return trace.Link(context) if context.is_valid else None
