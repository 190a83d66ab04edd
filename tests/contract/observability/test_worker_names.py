"""The names of worker and provider: in contexts, in what `ctx.log` adds, and in spans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from importable import process_handlers
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from eventbus import Batch, BatchContext, EventContext, EventProvider, JobFacts, SyncContext
from eventbus.telemetry import spans as telemetry
from workflows import StepContext, Workflow, WorkflowProvider
from workflows.testing import run_inline

MakeProvider = Callable[..., EventProvider]


async def test_handlers_in_the_loop_in_threads_and_in_batches_know_them_and_log_them(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(name="shop-1")
    seen: list[tuple[str, str]] = []

    def note(ctx: JobFacts) -> None:
        seen.append((ctx.worker, ctx.provider))
        ctx.log.info("seen")

    @provider.on("a")
    async def in_loop(_: Any, ctx: EventContext) -> None:
        note(ctx)

    @provider.on("b")
    def in_thread(_: Any, ctx: SyncContext) -> None:
        note(ctx)

    @provider.on("c", batch=Batch(size=2))
    async def together(_: list[Any], ctx: BatchContext) -> None:
        assert (ctx.worker, ctx.provider) == (ctx.items[0].worker, ctx.items[0].provider)
        note(ctx.items[0])

    with capture_logs() as logs:
        async with provider, provider.worker() as worker:
            for name in "abc":
                await provider.emit(name)
    assert seen == [(worker.id, "shop-1")] * 3
    told = [(each["worker"], each["provider"]) for each in logs if each["event"] == "seen"]
    assert told == seen


async def test_the_logger_of_a_context_adds_the_meta(make_provider: MakeProvider) -> None:
    workflow: Workflow[Any, Any] = Workflow("walk")
    provider = make_provider()
    flows = WorkflowProvider(provider)

    @provider.on("a")
    async def handle(_: Any, ctx: EventContext) -> None:
        ctx.log.info("seen")

    @workflow.step
    async def act(ctx: StepContext[Any]) -> None:
        ctx.log.info("seen")

    flows.register(workflow)
    with capture_logs() as logs:
        async with provider, provider.worker():
            await provider.emit("a", meta={"tenant": "t1"})
            await provider.emit("a")
            await (await flows.execute(workflow, None, meta={"tenant": "t2"})).result()
    told = [each.get("meta") for each in logs if each["event"] == "seen"]
    assert told == [{"tenant": "t1"}, None, {"tenant": "t2"}]


@pytest.mark.slow
async def test_handlers_in_processes_know_them(make_provider: MakeProvider) -> None:
    provider = make_provider(name="shop-1")
    provider.on("names", pool="process")(process_handlers.tell_names)
    async with provider, provider.worker() as worker:
        assert await provider.emit("names") == [worker.id, "shop-1"]


async def test_steps_know_them_and_a_step_inline_has_none(make_provider: MakeProvider) -> None:
    provider = make_provider(name="shop-1")
    flows = WorkflowProvider(provider)
    workflow = Workflow[Any, Any]("names")
    seen: list[tuple[str, str]] = []

    @workflow.step
    async def tell(ctx: StepContext[Any]) -> None:
        seen.append((ctx.worker, ctx.provider))
        ctx.log.info("seen")

    flows.register(workflow)
    with capture_logs() as logs:
        async with provider, provider.worker() as worker:
            await (await flows.execute(workflow, None)).result()
        await run_inline(workflow, None)
    assert seen == [(worker.id, "shop-1"), ("", "")]
    told = [(each.get("worker"), each.get("provider")) for each in logs if each["event"] == "seen"]
    assert told == [(worker.id, "shop-1"), (None, None)]


async def test_spans_of_handlers_and_of_steps_have_them(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, exporter = make_provider(name="shop-1"), InMemorySpanExporter()
    sdk = TracerProvider()
    sdk.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry.trace, "_TRACER_PROVIDER", sdk)
    flows = WorkflowProvider(provider)
    workflow = Workflow[Any, Any]("names")

    @workflow.step
    async def tell(ctx: StepContext[Any]) -> None:
        await ctx.emit("a")

    @provider.on("a")
    async def handle(_: Any) -> None:
        return None

    flows.register(workflow)
    async with provider, provider.worker() as worker:
        await (await flows.execute(workflow, None)).result()
    spans = {each.name: each.attributes or {} for each in exporter.get_finished_spans()}
    for name in ("process a", "step names.tell"):
        assert spans[name]["eventbus.worker.id"] == worker.id, spans.keys()
        assert spans[name]["messaging.client.id"] == "shop-1"
