"""Every span, in one place, and the names of its attributes.

W3C trace context travels in the envelope whether or not an SDK is set: without one it is
passed on as it came. Spans exist only when an SDK is set, for even a span that does
nothing costs more than a small job. Names follow OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from eventbus.ambient import Ambient

__all__ = ["receive_span", "send_context", "trace_id_of", "tracer"]

_propagator = TraceContextTextMapPropagator()
_UNKNOWN = object()
_SILENT = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)


def tracer() -> trace.Tracer | None:
    """Return our tracer, or None while no SDK is set."""
    if _load_named() and getattr(trace, "_TRACER_PROVIDER", _UNKNOWN) is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, _SILENT):
        return None
    return provider.get_tracer("eventbus")


@cache
def _load_named() -> bool:
    """Have OpenTelemetry load the SDK that the environment names, if it names one.

    It would look into the environment each time while none is set, which costs an emission more
    than all else here. Once it has looked, its variable says the same.
    """
    trace.get_tracer_provider()
    return True


def send_context(event: str, queue: str, job_id: str, ambient: Ambient) -> tuple[str, str]:
    """Return `traceparent` and `tracestate` of one emission; makes its producer span."""
    active = tracer()
    if active is None:
        return ambient.traceparent, ambient.tracestate
    attributes = _attributes("send", event, queue, job_id)
    span = active.start_span(f"send {event}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    span.end()
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")


@contextmanager
def receive_span(
    active: trace.Tracer,
    event: str,
    queue: str,
    job_id: str,
    *,
    attempt: int,
    traceparent: str,
    tracestate: str,
) -> Generator[trace.Span]:
    """The consumer span around one attempt, the producer's child. Records what is raised inside."""
    carrier = {"traceparent": traceparent, "tracestate": tracestate}
    attributes = {**_attributes("process", event, queue, job_id), "eventbus.attempt": attempt}
    with active.start_as_current_span(
        f"process {event}",
        # Never what surrounds this task: that is what surrounded the start of the worker.
        context=_propagator.extract(carrier, Context()),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    ) as span:
        yield span


def trace_id_of(traceparent: str) -> str:
    """Return the trace id inside a `traceparent`, empty if there is none."""
    return traceparent[3:35] if len(traceparent) == 55 else ""


def _attributes(operation: str, event: str, queue: str, job_id: str) -> dict[str, str | int]:
    return {
        "messaging.system": "eventbus",
        "messaging.operation.type": operation,
        "messaging.operation.name": f"{operation} {event}",
        "messaging.destination.name": queue,
        "messaging.message.id": job_id,
    }
