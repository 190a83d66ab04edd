"""What errors of steps, tasks, hooks and rollbacks repeat of the sensitive input of their flow is recorded
nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
from importable.paying import Order
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus import EventProvider, JobFailure, Retry
from eventbus.telemetry import spans
from workflows import FlowContext, FlowError, StepContext, Workflow, WorkflowProvider, durable, task

MakeProvider = Callable[..., EventProvider]

CARD = "4111-1111-1111"


def _local(flows: WorkflowProvider, kind: str) -> Any:
    shop: Workflow[Order, str] = Workflow(
        "shop", input=Order, output=str, spread=kind == "spread", retry=Retry(attempts=2, delay=0)
    )

    @shop.step()
    async def reserve(ctx: StepContext[Order]) -> int:
        return 1

    @reserve.rollback
    async def release(ctx: StepContext[Order], _: int) -> None:
        raise LookupError(f"no place for {ctx.input.card}")

    @shop.step()
    def pay(ctx: StepContext[Order]) -> int:
        if kind == "hook":
            return 2
        raise ValueError(f"card {ctx.input.card} was declined") from KeyError(ctx.input.card)

    @shop.completed
    async def tell(ctx: StepContext[Order]) -> str:
        raise ValueError(f"no mail about {ctx.input.card}")

    flows.register(shop)
    return shop


def _function(flows: WorkflowProvider) -> Any:
    @task(retry=Retry(attempts=2, delay=0))
    async def pay(card: str) -> None:
        raise ValueError(f"card {card} was declined")

    @durable("shop")
    async def shop(ctx: FlowContext[Order]) -> str:
        await ctx.step(pay, ctx.input.card)
        return "paid"

    flows.register(shop)
    return shop


@pytest.mark.parametrize("kind", ["local", "spread", "hook", "function"])
async def test_errors_in_a_flow_do_not_quote_what_is_sensitive_in_its_input(
    make_provider: MakeProvider,
    logs: list[MutableMapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    exporter, sdk = InMemorySpanExporter(), TracerProvider()
    sdk.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans.trace, "_TRACER_PROVIDER", sdk)
    provider = make_provider()
    told: list[JobFailure] = []
    provider.on_failure(told.append)
    flows = WorkflowProvider(provider)
    shop = _function(flows) if kind == "function" else _local(flows, kind)
    async with provider, provider.worker(), provider.watch() as changes:
        handle = await flows.execute(shop, Order("o-1", CARD))
        with pytest.raises(FlowError) as raised:
            await handle.result()
        tree = await provider.inspector.trees.get(handle.id)
        seen = [str(raised.value), str(raised.value.__cause__), str(tree), str(await handle.report())]
        seen += [str(await provider.inspector.queues.failures(f"workflow.{shop.name}"))]
        seen += [str(change) for change in await changes.newest(100)]
        seen += [str(report) for report in [await provider.inspector.jobs.get(handle.id)]]
    seen += [str(logs), str(told)]
    for span in exporter.get_finished_spans():
        seen += [f"{span.status.description} {[dict(event.attributes or {}) for event in span.events]}"]
    assert "•••" in str(raised.value)
    assert told
    assert [each for each in seen if CARD in each] == []
