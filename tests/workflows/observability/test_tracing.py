"""Traces of flows with an SDK: one trace for a whole flow, with every attempt of everything that ran."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus import EventContext, EventProvider, Retry, Unrecoverable
from eventbus.telemetry import spans as telemetry
from workflows import FlowContext, StepContext, StepError, Workflow, WorkflowProvider, durable, task

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Spans = Callable[[], list[ReadableSpan]]

_TWICE = Retry(attempts=2, delay="1ms")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """Set an SDK for the test; gives the ended spans in order."""
    exporter = InMemorySpanExporter()
    sdk = TracerProvider()
    sdk.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry.trace, "_TRACER_PROVIDER", sdk)
    return lambda: list(exporter.get_finished_spans())


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def _traces(spans: list[ReadableSpan]) -> set[int]:
    return {each.get_span_context().trace_id for each in spans}  # type: ignore[union-attr]


def _attempts(spans: list[ReadableSpan]) -> list[tuple[str, int]]:
    """Return the names of the spans of work, with the number of the attempt."""
    return [
        (each.name, (each.attributes or {})["eventbus.attempt"])
        for each in spans
        if "execute" not in each.name
    ]  # type: ignore[misc]


def _one(spans: list[ReadableSpan], name: str) -> ReadableSpan:
    (found,) = [each for each in spans if each.name == name]
    return found


def _links(span: ReadableSpan) -> list[int]:
    return [each.context.span_id for each in span.links]


def _check_attributes(
    found: list[ReadableSpan], flow_id: str, *, client: str, worker: str, socket: str
) -> None:
    both = {
        "messaging.system": "eventbus",
        "messaging.destination.name": "w",
        "messaging.client.id": client,
        "server.address": socket,
        "messaging.message.conversation_id": flow_id,
        "workflows.workflow": "w",
        "workflows.flow_id": flow_id,
    }
    assert dict(_one(found, "execute w").attributes or {}) == {
        **both,
        "messaging.operation.name": "execute",
        "messaging.operation.type": "send",
        "messaging.message.id": flow_id,
    }
    assert dict(_one(found, "step w.join").attributes or {}) == {
        **both,
        "messaging.operation.name": "step",
        "messaging.operation.type": "process",
        "messaging.message.id": f"{flow_id}/1/join/0",
        "workflows.step": "join",
        "eventbus.worker.id": worker,
        "eventbus.attempt": 1,
    }


@pytest.mark.real  # the address of a server
async def test_a_flow_is_one_trace_in_which_steps_link_to_what_they_waited_for(
    make_provider: MakeProvider, spans: Spans
) -> None:
    workflow = Workflow[Any, Any]("w", retry=_TWICE)
    seen: list[str] = []

    @workflow.step()
    async def a(ctx: StepContext[Any]) -> None:
        seen.append(ctx.traceparent)

    @workflow.step(after=a)
    def left(ctx: StepContext[Any]) -> None: ...

    @workflow.step(after=a, when=lambda _: False)
    def right(ctx: StepContext[Any]) -> None: ...

    @workflow.step(after=[left, right])
    async def join(ctx: StepContext[Any]) -> None: ...

    @workflow.completed
    async def end(ctx: StepContext[Any]) -> None: ...

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    caller = telemetry.trace.get_tracer_provider().get_tracer("test")
    async with provider, provider.worker() as runner:
        with caller.start_as_current_span("request"):
            handle = await flows.execute(workflow, None)
        await handle.result()

    found = spans()
    names = ["step w.a", "step w.left", "step w.right", "step w.join", "completed w"]
    assert sorted(each.name for each in found) == sorted(["request", "execute w", *names])
    assert len(_traces(found)) == 1
    execute = _one(found, "execute w")
    assert execute.parent is not None
    assert execute.parent.span_id == _id(_one(found, "request"))
    for name in names:
        parent = _one(found, name).parent
        assert parent is not None
        assert parent.span_id == _id(execute)
        assert (_one(found, name).attributes or {})["workflows.flow_id"] == handle.id
    name, socket = provider.settings.name, provider.settings.url.partition("://")[2]
    _check_attributes(found, handle.id, client=name, worker=runner.id, socket=socket)
    first, sides = _one(found, "step w.a"), [_one(found, "step w.left"), _one(found, "step w.right")]
    assert _links(first) == []
    assert [_links(each) for each in sides] == [[_id(first)], [_id(first)]]
    assert sorted(_links(_one(found, "step w.join"))) == sorted(map(_id, sides))
    assert seen[0].split("-")[2] == f"{_id(first):016x}"


async def test_retries_rollbacks_and_hooks_are_in_the_trace_of_their_flow(
    make_provider: MakeProvider, spans: Spans
) -> None:
    workflow = Workflow[Any, Any]("w", retry=_TWICE)

    @workflow.step()
    async def reserve(ctx: StepContext[Any]) -> int:
        return 1

    @reserve.rollback
    async def release(ctx: StepContext[Any], _: int) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")

    @workflow.step()
    async def charge(ctx: StepContext[Any]) -> None:
        raise ValueError("declined")

    @workflow.failed
    async def report(ctx: StepContext[Any], error: Exception) -> None: ...

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        with pytest.raises(StepError):
            await (await flows.execute(workflow, None)).result()

    found = spans()
    assert len(_traces(found)) == 1
    assert _attempts(found) == [
        ("step w.reserve", 1),
        ("step w.charge", 1),
        ("step w.charge", 2),
        ("rollback w.reserve", 1),
        ("rollback w.reserve", 2),
        ("failed w", 1),
    ]
    step = _one(found, "step w.reserve")
    rollbacks = [each for each in found if each.name == "rollback w.reserve"]
    assert [_links(each) for each in rollbacks] == [[_id(step)], [_id(step)]]
    assert [each.status.is_ok for each in rollbacks] == [False, True]
    charges = [each for each in found if each.name == "step w.charge"]
    assert [each.events[0].name for each in charges] == ["exception", "exception"]
    assert [(each.attributes or {})["error.type"] for each in charges] == ["ValueError", "ValueError"]
    assert [_links(each) for each in charges] == [[_id(step)], [_id(step)]]


async def test_sub_workflows_events_and_retries_by_hand_stay_in_the_trace(
    make_provider: MakeProvider, spans: Spans
) -> None:
    inner = Workflow[Any, Any]("inner")
    is_broken = True

    @inner.step()
    async def tell(ctx: StepContext[Any]) -> str:
        return await ctx.emit("told")

    @inner.completed
    async def told(ctx: StepContext[Any]) -> str:
        return ctx.result(tell)

    outer = Workflow[Any, Any]("outer")
    outer.flow(inner)

    @outer.step()
    async def end(ctx: StepContext[Any]) -> None:
        if is_broken:
            raise Unrecoverable("broken")

    provider = make_provider()

    @provider.on("told")
    async def hear(_: Any, ctx: EventContext) -> str:
        return ctx.correlation_id

    flows = WorkflowProvider(provider)
    flows.register(outer)
    async with provider, provider.worker():
        handle = await flows.execute(outer, None)
        with pytest.raises(StepError):
            await handle.result()
        is_broken = False
        await (await flows.retry(handle.id)).result()
        assert (await handle.report()).steps["inner"].state == "completed"

    found = spans()
    assert len(_traces(found)) == 1
    step = _one(found, "step inner.tell")
    sent = _one(found, "send told")
    assert sent.parent is not None
    assert sent.parent.span_id == _id(step)
    starter = next(each for each in found if each.name == "step outer.inner")
    assert step.parent is not None
    assert step.parent.span_id == _id(starter)
    assert [each.name for each in found].count("step outer.end") == 2
    assert _one(found, "completed outer")


async def test_callers_at_the_same_time_have_traces_of_their_own(
    make_provider: MakeProvider, spans: Spans
) -> None:
    workflow = Workflow[Any, Any]("w")

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> None:
        await asyncio.sleep(0)

    @workflow.step()
    async def second(ctx: StepContext[Any]) -> None: ...

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        handles = await asyncio.gather(*(flows.execute(workflow, None) for _ in range(20)))
        await asyncio.gather(*(each.result() for each in handles))

    found = spans()
    by_flow: dict[Any, set[int]] = {}
    for span in found:
        by_flow.setdefault((span.attributes or {})["workflows.flow_id"], set()).update(_traces([span]))
    assert set(by_flow) == {each.id for each in handles}
    assert all(len(traces) == 1 for traces in by_flow.values())
    assert len(_traces(found)) == 20


@task(retry=_TWICE)
async def pay(number: int) -> int:
    return number


@pay.rollback
async def refund(number: int) -> None: ...


async def test_the_children_of_a_durable_function_are_in_its_trace(
    make_provider: MakeProvider, spans: Spans
) -> None:
    inner = Workflow[Any, Any]("inner")

    @inner.step()
    async def pack(ctx: StepContext[Any]) -> None: ...

    @durable("child")
    async def child(ctx: FlowContext[int]) -> int:
        return await ctx.step(pay, ctx.input)

    @durable("parent", retry=Retry(attempts=1))
    async def parent(ctx: FlowContext[None]) -> None:
        await ctx.step(pay, 0)
        await ctx.map(pay, [1, 2])
        await ctx.gather(ctx.flow(child, 3), ctx.flow(inner, None))
        raise ValueError("late")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    for workflow in (parent, child, inner):
        flows.register(workflow)
    async with provider, provider.worker():
        handle = await flows.execute(parent, None)
        with pytest.raises(StepError):
            await handle.result()

    found = spans()
    assert len(_traces(found)) == 1
    assert sorted(each.name for each in found if "rollback" not in each.name) == [
        "completed inner",
        "execute parent",
        "step child.pay",
        "step inner.pack",
        *["step parent.pay"] * 3,
    ]
    execute = _one(found, "execute parent")
    steps = [each for each in found if each.name.startswith("step")]
    for span in steps:
        assert span.parent is not None
        assert span.parent.span_id == _id(execute), span.name
    rollbacks = [each for each in found if each.name.startswith("rollback")]
    paid = [each for each in steps if each.name.endswith("pay")]
    assert sorted(link for each in rollbacks for link in _links(each)) == sorted(map(_id, paid))
    flow_ids = {str((each.attributes or {})["workflows.flow_id"]) for each in steps}
    assert len(flow_ids) == 3
    assert all(each.startswith(handle.id) for each in flow_ids)
