"""One run of a handler in its process: from the request of the worker to the report for it.

Not here: the channel to the worker, and what a fork of the process does (`child`).

What must always hold: whatever a handler raises, or its import, becomes a report.
"""

from __future__ import annotations

import contextvars
import functools
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from eventbus.engine.job import outside_job
from eventbus.handlers.attempt import Attempt, AttemptHost
from eventbus.handlers.context import ProcessContext
from eventbus.handlers.process.import_path import find
from eventbus.handlers.process.messages import HandlerSpec, Report, ReportedLeaf, Request
from eventbus.model.codec import Codec
from eventbus.model.later import Later
from eventbus.model.names import DEFAULT_GROUP
from eventbus.telemetry.error_groups import leaves_of
from eventbus.telemetry.failure import describe, is_answer, is_awaited, is_final, kinds_of
from eventbus.telemetry.log_context import EVENT_NAME, GROUP, SPAN_ID, TRACE_ID, fact
from eventbus.telemetry.propagation import Ambient, enter
from eventbus.telemetry.spans import attach_context, trace_id_of


def run_request(given: Request, host: AttemptHost) -> tuple[Report, BaseException | None]:
    """Run a handler in a context of its own; return its report and its error, which a fork needs to end.

    `host` does what its context is asked for.
    """
    return contextvars.copy_context().run(_run_here, given, host)


def _surround(given: Request) -> None:
    """Set the context variables of a handler: its job for emissions, its facts for log events, its trace."""
    facts = given.facts
    enter(Ambient(facts["meta"], facts["correlation_id"], facts["job_id"], facts["traceparent"]))
    for name in ("job_id", "attempt", "correlation_id"):
        fact(name).set(facts[name])
    if facts["event"]:
        EVENT_NAME.set(facts["event"])
    if facts["group"] != DEFAULT_GROUP:
        GROUP.set(facts["group"])
    if trace_id := trace_id_of(facts["traceparent"]):
        TRACE_ID.set(trace_id)
    if given.span_id:
        SPAN_ID.set(given.span_id)
    attach_context(facts["traceparent"], given.baggage)


def _run_here(given: Request, host: AttemptHost) -> tuple[Report, BaseException | None]:
    declared: tuple[type[Exception], ...] = ()
    retry_on: tuple[type[Exception], ...] = ()
    facts = given.facts
    try:
        _surround(given)
        handler = _prepare(given.task)
        declared, retry_on = handler.declared, handler.retry_on
        payload = handler.decode(bytes(given.payload))
        own = Attempt(host, outside_job(facts["job_id"]))
        keywords = {given.task.context: ProcessContext(own, **facts)} if given.task.context else {}
        return Report(result=msgspec.Raw(handler.encode(handler.function(payload, **keywords)))), None
    except Later as error:
        return Report(later=error.delay), error
    except BaseException as error:  # noqa: BLE001  (whatever a handler raises, or its import)
        text = describe(error, attempts=facts["attempt"], declared=declared, event=given.task.event)

        def told(one: BaseException) -> ReportedLeaf:
            is_end = is_final(one) or is_answer(one, declared, retry_on)
            return ReportedLeaf(is_end, tuple(kinds_of(one)), is_awaited(one))

        own, leaves = told(error), list(dict.fromkeys(map(told, leaves_of(error))))
        return Report(
            error=text, is_final=own.is_final, kinds=list(own.kinds), is_awaited=own.is_awaited, leaves=leaves
        ), error


class _Prepared(msgspec.Struct, frozen=True):
    """A handler with its codecs and its declared errors, as this process runs it."""

    function: Callable[..., Any]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    declared: tuple[type[Exception], ...]
    retry_on: tuple[type[Exception], ...]


@functools.cache
def _prepare(task: HandlerSpec) -> _Prepared:
    event = find(task.event_place) if task.event_place else None
    payload, result = (event.payload, event.result) if event else (Any, Any)
    answers = find(task.errors_place) if task.errors_place else event
    declared, retry_on = (answers.errors, answers.retry_on) if answers else ((), ())
    payloads = Codec(payload, role="payload", owner=task.event, max_bytes=sys.maxsize)
    results = Codec(result, role="result", owner=task.event, max_bytes=task.max_result)
    encode = results.encode if task.replies else _encode_nothing
    return _Prepared(find(task.function), payloads.decode, encode, declared, retry_on)


def _encode_nothing(_: Any) -> bytes:
    return b"null"
