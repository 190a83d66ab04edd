"""All spans with the names of their attributes, and the trace context and baggage that travel with a message.

The W3C trace context travels in the envelope whether or not an SDK is set. Without an SDK it is passed on as
it came. Spans are made only if an SDK is set, because even a span that does nothing costs more than a small
job. The names follow OpenTelemetry's conventions for messaging.

The W3C baggage of OpenTelemetry's context around an emission is set again around the handler. That needs no
SDK. What must always hold: text that is not baggage, or more baggage than W3C allows, fails neither an
emission nor a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import quote_plus

from opentelemetry import trace
from opentelemetry.baggage import get_all
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from eventbus.errors import HandlerError
from eventbus.model.containment import as_exception
from eventbus.model.later import Later
from eventbus.model.redaction.hidden_around import hidden_around
from eventbus.model.redaction.hidden_values import HiddenTexts
from eventbus.telemetry.failure import message_of, type_name
from eventbus.telemetry.log_context import SPAN_ID, TRACE_ID, forget_facts
from eventbus.telemetry.logging import get_logger
from eventbus.telemetry.propagation import NOTHING, Ambient, enter
from eventbus.telemetry.server_address import server_attributes
from eventbus.telemetry.tracebacks import whole_traceback

_log = get_logger("eventbus.provider")

_propagator = TraceContextTextMapPropagator()
_baggage = W3CBaggagePropagator()
_MAX_BAGGAGE, _MAX_ENTRY, _MAX_ENTRIES = 8192, 4096, 180  # characters, characters, entries: W3C's limits
_UNKNOWN = object()
_SILENT = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)


def tracer() -> trace.Tracer | None:
    """Return the tracer of this package, or None while no SDK is set."""
    # The private variable is a shortcut: `get_tracer_provider` would read the environment for each emission.
    if _load_named() and getattr(trace, "_TRACER_PROVIDER", _UNKNOWN) is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, _SILENT):
        return None
    return provider.get_tracer("eventbus")


@cache
def _load_named() -> bool:
    """Let OpenTelemetry load the SDK that the environment names, if it names one. Once in a process.

    While no SDK is set, OpenTelemetry reads the environment at each call, which costs an emission more than
    all other steps here. After the first call its private variable has the same answer.
    """
    trace.get_tracer_provider()
    return True


def begin_apart() -> None:
    """Remove the job, meta, span and baggage that surround the caller from its context."""
    enter(NOTHING)
    forget_facts()
    if get_current():  # only if necessary: each variable in a context makes setting the others slower
        attach(Context())


def message_attributes(
    operation: str, kind: str, *, destination: str, client: str, url: str = "", **more: str
) -> dict[str, Any]:
    """Return the attributes of all spans of one operation. `kind` is `send` or `process`, `url` that of the
    settings.
    """
    return {
        "messaging.system": "eventbus",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": destination,
        "messaging.client.id": client,
        **server_attributes(url),
        **more,
    }


def send_context(
    event: str, job_id: str, ambient: Ambient, correlation_id: str, client: str, url: str
) -> tuple[str, str]:
    """Return `traceparent` and `tracestate` of one emission; makes its producer span if an SDK is set."""
    active = tracer()
    if active is None:
        return ambient.traceparent, ambient.tracestate
    attributes = message_attributes("send", "send", destination=event, client=client, url=url)
    attributes["messaging.message.id"] = job_id
    attributes["messaging.message.conversation_id"] = correlation_id
    span = active.start_span(f"send {event}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    span.end()
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")


def trace_around(ambient: Ambient) -> tuple[str, str]:
    """Return `traceparent` and `tracestate` of the code around, for what is sent later; makes no span."""
    if tracer() is None:
        return ambient.traceparent, ambient.tracestate
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")


def creation_links(traceparent: str, tracestate: str) -> list[trace.Link]:
    """Return a link to the span that made a message, as the conventions want it beside the parent; none if
    there is none.
    """
    if not traceparent:
        return []
    made_in = _propagator.extract({"traceparent": traceparent, "tracestate": tracestate}, Context())
    context = trace.get_current_span(made_in).get_span_context()
    return [trace.Link(context)] if context.is_valid else []


@contextmanager
def receive_span(
    active: trace.Tracer,
    name: str,
    attributes: Mapping[str, Any],
    *,
    traceparent: str,
    tracestate: str,
    links: Sequence[trace.Link] = (),
    hides: Callable[[], HiddenTexts] | None = None,
) -> Generator[trace.Span]:
    """Make the consumer span around one attempt, a child of the producer's span. It records errors inside.

    The caller must have called `begin_apart`, so that its context has nothing of another job. `hides` returns
    the values that a recorded error must not quote; by default those of the job that runs around the caller.
    """
    later: Later | None = None
    with active.start_as_current_span(
        name,
        context=_propagator.extract({"traceparent": traceparent, "tracestate": tracestate}, get_current()),
        kind=trace.SpanKind.CONSUMER,
        attributes=dict(attributes),
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        around = span.get_span_context()
        TRACE_ID.set(trace.format_trace_id(around.trace_id))
        SPAN_ID.set(trace.format_span_id(around.span_id))
        with error_noted(span):
            try:
                yield span
            except Later as given:  # no error
                later = given
                span.set_attribute("eventbus.later", given.delay)
            except Exception as error:
                _record(span, error, (hides or hidden_around)())
                raise
    if later is not None:
        raise later


def _record(span: trace.Span, error: Exception, hidden: HiddenTexts) -> None:
    """Record an error as the SDK does, without what is sensitive. As logs, a trace has what is only secret by
    its name.
    """
    text = hidden.shown(message_of(error))
    stack = hidden.shown(whole_traceback(error))
    facts = {"type": type_name(type(error)), "message": text, "stacktrace": stack, "escaped": "False"}
    span.add_event("exception", {f"exception.{name}": value for name, value in facts.items()})
    span.set_status(trace.Status(trace.StatusCode.ERROR, f"{type(error).__name__}: {text}"))


@contextmanager
def error_noted(span: trace.Span) -> Generator[None]:
    """Set the type of an error inside the block as an attribute of the span."""
    try:
        yield
    except asyncio.CancelledError as error:
        # A timeout is still a cancellation here; the executor makes it a TimeoutError outside the span.
        if error.args[:1] == ("timeout",):
            span.set_attribute("error.type", "TimeoutError")
            span.set_status(trace.Status(trace.StatusCode.ERROR, "the handler timed out"))
        raise
    except BaseException as error:
        kind = error.type_name if isinstance(error, HandlerError) else type_name(type(error))
        span.set_attribute("error.type", kind)
        raise


def traceparent_of(span: trace.Span) -> str:
    """Return the `traceparent` for work inside a span."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent", "")


def trace_id_of(traceparent: str) -> str:
    """Return the trace id in a `traceparent`; empty if there is none."""
    return traceparent[3:35] if len(traceparent) == 55 else ""


def baggage_around() -> str:
    """Return the baggage around the caller as the text of a W3C header; empty if none, or too much."""
    context = get_current()
    if not context:
        return ""
    entries = get_all(context)
    if not entries:
        return ""
    try:
        texts = [f"{quote_plus(str(name))}={quote_plus(str(value))}" for name, value in entries.items()]
    except BaseException as error:  # noqa: BLE001  (the user's __str__)
        as_exception(error)
        return ""
    text = ",".join(texts)
    if len(text) > _MAX_BAGGAGE or len(texts) > _MAX_ENTRIES or max(map(len, texts)) > _MAX_ENTRY:
        _warn_of_baggage()
        return ""
    return text


@cache
def _warn_of_baggage() -> None:
    """Log the warning once in a process, because code that sets too much mostly does so for each emission."""
    _log.warning(
        "baggage not passed on, it is larger than W3C allows",
        max_bytes=_MAX_BAGGAGE,
        max_entries=_MAX_ENTRIES,
        max_entry_bytes=_MAX_ENTRY,
    )


def attach_baggage(text: str) -> None:
    """Set the baggage of a message for the caller's task from here on. Ignores text that is not baggage."""
    attach(_with_baggage(text))


def attach_context(traceparent: str, baggage: str) -> None:
    """Set the trace and the baggage of a message for the caller, in a process that has neither."""
    if traceparent or baggage:
        attach(_propagator.extract({"traceparent": traceparent}, _with_baggage(baggage)))


def _with_baggage(text: str) -> Context:
    if not text:
        return get_current()
    try:
        return _baggage.extract({"baggage": text}, get_current())
    except Exception:  # noqa: BLE001  (text from outside, parsed by OpenTelemetry)
        return get_current()
