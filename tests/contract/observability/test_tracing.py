"""W3C trace context: spans if an SDK is set up; otherwise the context is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
from importable import process_handlers
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus import (
    Batch,
    BatchContext,
    EventContext,
    EventProvider,
    HandlerError,
    JobCancelled,
    Retry,
    SyncContext,
)
from eventbus.telemetry import propagation
from eventbus.telemetry import spans as telemetry

MakeProvider = Callable[..., EventProvider]
Spans = Callable[[], dict[str, list[ReadableSpan]]]

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """Set an SDK for the test; gives the ended spans by name."""
    exporter = InMemorySpanExporter()
    sdk = TracerProvider()
    sdk.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry.trace, "_TRACER_PROVIDER", sdk)

    def by_name() -> dict[str, list[ReadableSpan]]:
        found: dict[str, list[ReadableSpan]] = {}
        for span in exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found

    return by_name


def _ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def _parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


async def test_a_chain_is_one_trace_each_span_the_child_of_what_caused_it(
    make_provider: MakeProvider, spans: Spans
) -> None:
    provider = make_provider(name="shop-1")
    socket = provider.settings.url.partition("://")[2]

    @provider.on("a")
    async def a(_: Any, ctx: EventContext) -> int:
        return await ctx.emit("b")

    @provider.on("b")
    def b(_: Any, ctx: SyncContext) -> int:
        return ctx.emit("c").result(240)

    @provider.on("c")
    async def c(_: Any) -> int:
        return 1

    async with provider.worker() as runner:
        emission = provider.emit("a", correlation_id="req-1")
        assert await emission == 1
    found = {name: each[0] for name, each in spans().items()}
    path = ["send a", "process a", "send b", "process b", "send c", "process c"]
    assert sorted(found) == sorted(path)
    assert len({_ids(each)[0] for each in found.values()}) == 1
    parents = [None, *(_ids(found[name]) for name in path[:-1])]
    assert [_parent(found[name]) for name in path] == parents
    assert [found[name].kind for name in path[:2]] == [trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER]
    both = {
        "messaging.system": "eventbus",
        "messaging.destination.name": "a",
        "messaging.client.id": "shop-1",
        "server.address": socket,
        "messaging.message.id": emission.job_id,
        "messaging.message.conversation_id": "req-1",
    }
    assert dict(found["send a"].attributes or {}) == {
        **both,
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
    }
    assert dict(found["process a"].attributes or {}) == {
        **both,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": "default",
        "eventbus.worker.id": runner.id,
        "eventbus.attempt": 1,
    }


async def test_an_emission_belongs_to_the_span_around_it(make_provider: MakeProvider, spans: Spans) -> None:
    provider = make_provider()
    provider.on("a")(lambda _: None)
    tracer = telemetry.trace.get_tracer_provider().get_tracer("test")
    async with provider.worker():
        with tracer.start_as_current_span("request"):
            emission = provider.emit("a")
        await emission
        await provider.emit("a")
    found = spans()
    first, second = found["send a"]
    assert _parent(first) == _ids(found["request"][0])
    assert _parent(second) is None


async def test_the_span_that_started_a_worker_is_no_parent_of_its_jobs(
    make_provider: MakeProvider, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, silent = make_provider(), make_provider()
    provider.on("a")(lambda _: None)
    tracer = telemetry.trace.get_tracer_provider().get_tracer("test")
    async with silent:
        with monkeypatch.context() as patch:  # an emitter without an SDK
            patch.setattr(telemetry, "send_context", lambda *_: ("", ""))
            patch.setattr("eventbus.emit.emitter.send_context", lambda *_: ("", ""))
            emission = silent.emit("a")
        with tracer.start_as_current_span("start"):
            async with provider.worker():
                await emission
    assert _parent(spans()["process a"][0]) is None


async def test_each_attempt_has_its_span_and_an_error_is_recorded_on_it(
    make_provider: MakeProvider, spans: Spans
) -> None:
    provider = make_provider(retry=Retry(attempts=2, delay=0))

    @provider.on("a")
    async def a(_: Any) -> None:
        raise ValueError("no")

    async with provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("a")
    first, second = spans()["process a"]
    assert [(each.attributes or {})["eventbus.attempt"] for each in (first, second)] == [1, 2]
    assert _parent(first) == _parent(second) == _ids(spans()["send a"][0])
    assert first.status.status_code is trace.StatusCode.ERROR
    assert first.events[0].name == "exception"
    assert (first.attributes or {})["error.type"] == "ValueError"


async def test_an_error_has_its_own_type_wherever_it_was_raised_and_a_timeout_is_one(
    make_provider: MakeProvider, spans: Spans
) -> None:
    provider = make_provider(retry=1)
    began = asyncio.Event()
    provider.on("fail", pool="process")(process_handlers.fail)

    @provider.on("slow", timeout="10ms")
    async def slow(_: Any) -> None:
        await asyncio.Event().wait()

    @provider.on("long")
    async def long(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async with provider.worker():
        for name in ("fail", "slow"):
            with pytest.raises(HandlerError):
                await provider.emit(name, "as it comes")
        emission = provider.emit("long")
        await began.wait()
        await emission.cancel()
        with pytest.raises(JobCancelled):
            await emission
    told = {
        name: (span.status.is_ok, (span.attributes or {}).get("error.type"))
        for name, (span,) in spans().items()
        if name.startswith("process")
    }
    assert told == {
        "process fail": (False, "ValueError"),
        "process slow": (False, "TimeoutError"),
        "process long": (True, None),
    }


async def test_the_log_names_the_trace(
    make_provider: MakeProvider, spans: Spans, logs: list[MutableMapping[str, Any]]
) -> None:
    provider = make_provider()

    @provider.on("a")
    async def a(_: Any, ctx: EventContext) -> None:
        ctx.log.info("hello")

    async with provider.worker():
        await provider.emit("a")
    (entry,) = [each for each in logs if each["event"] == "hello"]
    assert entry["trace_id"] == f"{_ids(spans()['process a'][0])[0]:032x}"


async def test_without_an_sdk_trace_context_is_passed_on_as_it_came(
    make_provider: MakeProvider, logs: list[MutableMapping[str, Any]]
) -> None:
    provider = make_provider()
    seen: list[propagation.Ambient] = []

    @provider.on("a")
    async def a(_: Any, ctx: EventContext) -> None:
        seen.append(propagation.current())
        ctx.log.info("hello")
        await ctx.emit("b")

    @provider.on("b")
    def b(_: Any) -> None:
        seen.append(propagation.current())

    async with provider.worker():
        token = propagation._current.set(  # pyright: ignore[reportPrivateUsage]
            propagation.Ambient(traceparent=TRACEPARENT, tracestate="vendor=1")
        )
        try:
            await provider.emit("a")
        finally:
            propagation._current.reset(token)  # pyright: ignore[reportPrivateUsage]
    assert [(each.traceparent, each.tracestate) for each in seen] == [(TRACEPARENT, "vendor=1")] * 2
    (entry,) = [each for each in logs if each["event"] == "hello"]
    assert entry["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_a_trace_context_that_cannot_be_read_is_nothing(
    make_provider: MakeProvider, spans: Spans
) -> None:
    assert telemetry.trace_id_of("nonsense") == ""
    provider = make_provider()

    @provider.on("a")
    async def a(_: Any, ctx: EventContext) -> str:
        return ctx.event

    async with provider.worker():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("eventbus.emit.emitter.send_context", lambda *_: ("00-zz", "?"))
            emission = provider.emit("a")
        assert await emission == "a"
    assert _parent(spans()["process a"][0]) is None


async def test_each_job_of_a_batch_has_a_span_to_which_its_emissions_belong(
    make_provider: MakeProvider, spans: Spans
) -> None:
    provider = make_provider()

    @provider.on("a", batch=Batch(size=2, wait="5s"))
    async def a(given: list[Any], ctx: BatchContext) -> list[Any]:
        return [await item.emit("b") for item in ctx.items]

    @provider.on("b")
    async def b(_: Any) -> int:
        return 1

    async with provider.worker():
        assert await asyncio.gather(*provider.emit_many("a", [1, 2])) == [1, 1]
    found = spans()
    jobs = {_ids(span) for span in found["process a"]}
    assert len(jobs) == 2
    assert {_parent(span) for span in found["send b"]} == jobs
