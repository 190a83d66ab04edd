"""The facts that structlog adds to log entries inside a handler, a step, a rollback and a hook."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from importable import process_handlers
from opentelemetry.sdk.trace import TracerProvider
from structlog.contextvars import bind_contextvars, get_contextvars

from eventbus import EventContext, EventProvider, HandlerError, JobFacts, Retry
from eventbus.telemetry import spans as telemetry
from workflows import StepContext, StepError, Workflow, WorkflowProvider
from workflows.testing import run_inline

MakeProvider = Callable[..., EventProvider]


async def test_below_a_handler_they_are_those_of_its_job_and_no_other(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=2, delay=0))
    seen: dict[str, dict[str, Any]] = {}

    @provider.on("outer")
    async def outer(_: Any, ctx: EventContext) -> None:
        bind_contextvars(mine=1)
        before = get_contextvars()
        await ctx.emit("inner")
        assert get_contextvars() == before
        seen["outer"] = before

    @provider.on("inner")
    def inner(_: Any) -> None:
        attempt = get_contextvars()["attempt"]
        seen[f"inner {attempt}"] = get_contextvars()
        if attempt == 1:
            raise ValueError("not yet")

    @provider.on("outer", group="audit")
    async def audit(_: Any) -> None:
        seen["audit"] = await asyncio.to_thread(get_contextvars)

    @provider.use
    async def through(payload: Any, ctx: EventContext, call: Any) -> Any:
        assert get_contextvars()["job_id"] == ctx.job_id
        return await call(payload)

    async with provider, provider.worker() as runner:
        emission = provider.emit("outer", correlation_id="req-1")
        await emission
        await runner.wait_drained(provider.flush)
    facts = {"event_name": "outer", "job_id": emission.job_id, "attempt": 1, "correlation_id": "req-1"}
    assert seen["outer"] == {**facts, "mine": 1}
    assert seen["audit"] == {**facts, "job_id": f"{emission.job_id}@audit", "group": "audit"}
    job_id = seen["inner 1"]["job_id"]
    assert seen["inner 1"] == {**facts, "event_name": "inner", "job_id": job_id}
    assert seen["inner 2"] == {**seen["inner 1"], "attempt": 2}
    assert get_contextvars() == {}


@pytest.mark.slow
async def test_in_a_process_they_are_the_same(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("around", pool="process")(process_handlers.tell_surroundings)
    provider.on("around", group="audit", pool="process")(process_handlers.tell_surroundings)
    async with provider, provider.worker() as runner:
        emissions = [provider.emit("around", n, correlation_id="req-1") for n in range(3)]
        for emission in emissions:
            facts = {"event_name": "around", "job_id": emission.job_id, "attempt": 1}
            assert (await emission)["facts"] == {**facts, "correlation_id": "req-1"}
        await runner.wait_drained(provider.flush)


async def test_what_surrounded_the_start_of_a_worker_surrounds_no_job(make_provider: MakeProvider) -> None:
    provider = make_provider()
    seen: list[dict[str, Any]] = []

    @provider.on("start", group="starters")
    async def start(_: Any, ctx: EventContext) -> None:
        await other.subscribe("later", later)

    async def later(_: Any) -> None:
        seen.append(get_contextvars())

    other = make_provider()
    async with other, provider, provider.worker() as runner:
        await provider.emit("start", meta={"tenant": "acme"}, reply=False)
        await runner.wait_drained(provider.flush)
        emission = provider.emit("later")
        await emission
    facts = {"event_name": "later", "attempt": 1}
    assert seen == [{**facts, "job_id": emission.job_id, "correlation_id": emission.job_id}]


@pytest.mark.parametrize("is_inline", [False, True], ids=["distributed", "inline"])
async def test_below_the_functions_of_a_flow_they_are_those_of_its_job(
    make_provider: MakeProvider, is_inline: bool
) -> None:
    provider = make_provider()
    seen: list[dict[str, Any]] = []
    workflow = Workflow[Any, Any]("w", retry=Retry(attempts=1))

    def note(ctx: StepContext[Any]) -> bool:
        found = get_contextvars()
        assert (found["flow_id"], found["job_id"]) == (ctx.flow_id, ctx.job_id)
        seen.append({name: value for name, value in found.items() if name not in ("flow_id", "job_id")})
        return True

    @workflow.step(when=note)
    def reserve(ctx: StepContext[Any]) -> None:
        note(ctx)

    @reserve.rollback
    async def release(ctx: StepContext[Any], _: None) -> None:
        note(ctx)

    @workflow.step()
    async def charge(ctx: StepContext[Any]) -> None:
        await asyncio.create_task(asyncio.to_thread(note, ctx))
        raise ValueError("declined")

    @workflow.failed
    def report(ctx: StepContext[Any], error: Exception) -> None:
        note(ctx)

    flows = WorkflowProvider(provider)
    flows.register(workflow)

    async def run() -> None:
        with provider.context(correlation_id="req-1"):
            if is_inline:
                await run_inline(workflow, None)
            else:
                await (await flows.execute(workflow, None)).result()

    async with provider, provider.worker():
        with pytest.raises(StepError):
            await run()
        assert get_contextvars() == {}
    facts = {"workflow": "w", "attempt": 1, "correlation_id": "req-1"}
    steps = ["reserve", "reserve", "charge", "reserve"]
    assert seen == [*({**facts, "step": step} for step in steps), facts]


async def test_a_flow_inside_a_handler_hides_its_facts_and_gives_them_back(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    workflow = Workflow[Any, Any]("w")

    @workflow.step()
    async def one(ctx: StepContext[Any]) -> list[str]:
        return sorted(get_contextvars())

    @workflow.completed
    async def end(ctx: StepContext[Any]) -> list[str]:
        return ctx.result(one)

    @provider.on("outer", group="flows")
    async def outer(_: Any) -> None:
        before = get_contextvars()
        inside.append(await run_inline(workflow, None))
        assert get_contextvars() == before

    inside: list[list[str]] = []
    async with provider, provider.worker() as runner:
        await provider.emit("outer", reply=False)
        await runner.wait_drained(provider.flush)
    assert inside == [["attempt", "correlation_id", "flow_id", "job_id", "step", "workflow"]]


async def test_a_span_is_known_where_there_is_one(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, logs: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(telemetry.trace, "_TRACER_PROVIDER", TracerProvider())
    provider = make_provider(retry=Retry(attempts=1))
    seen: list[dict[str, Any]] = []
    spans: list[str] = []

    def note() -> None:
        context = telemetry.trace.get_current_span().get_span_context()
        spans.append(f"{context.span_id:016x}")
        seen.append(get_contextvars())

    @provider.on("a")
    def a(_: Any, ctx: JobFacts) -> None:
        note()
        with telemetry.trace.get_tracer_provider().get_tracer("mine").start_as_current_span("mine"):
            ctx.log.info("hello")
        raise ValueError("after it")

    provider.on("around", pool="process")(process_handlers.tell_surroundings)
    workflow = Workflow[Any, Any]("w", retry=Retry(attempts=1))

    @workflow.step()
    async def one(ctx: StepContext[Any]) -> None:
        note()
        ctx.log.info("hello")
        raise ValueError("after it")

    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("a")
        with pytest.raises(StepError):
            await (await flows.execute(workflow, None)).result()
        there = await provider.emit("around", 1)
    assert [each["span_id"] for each in seen] == spans
    for event in ("hello", ("job failed", "step failed")):
        told = [each for each in logs if each["event"] in event]
        assert [(each["trace_id"], each["span_id"]) for each in told] == [
            (each["trace_id"], each["span_id"]) for each in seen
        ]
    assert (there["facts"]["trace_id"], there["facts"]["span_id"]) == (there["trace_id"], there["span_id"])
    assert int(there["span_id"], 16)


async def test_an_emission_that_is_dropped_in_a_job_is_told_with_its_own_facts(
    make_provider: MakeProvider, logs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    dropped: list[str] = []
    around: list[dict[str, Any]] = []

    class Log:
        def error(self, event: str, **facts: Any) -> None:
            around.append({**get_contextvars(), "told": facts["job_id"]})

    monkeypatch.setattr("eventbus.emit.emission._log", Log())

    @provider.on("outer", group="droppers")
    async def outer(_: Any, ctx: EventContext) -> None:
        emission = ctx.emit("inner")
        dropped.append(emission.job_id)
        while not emission.done():  # noqa: ASYNC110  (awaiting it would be hearing it)
            await asyncio.sleep(0.002)
        del emission

    @provider.on("inner")
    async def inner(_: Any) -> None:
        raise ValueError("nobody hears it")

    async with provider, provider.worker() as runner:
        emission = provider.emit("outer", reply=False)
        await emission
        await runner.wait_drained(provider.flush)
    facts = {"event_name": "inner", "job_id": dropped[0], "correlation_id": emission.job_id}
    assert around == [{**facts, "told": dropped[0]}]
