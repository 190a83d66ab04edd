"""What jobs and flows of schedules have of the call that made the schedule: meta, correlation id and
trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider

from eventbus import DefinitionError, Event, EventContext, EventProvider, PayloadError
from eventbus.schedules.plan import Plan, RootForm, decode_plan
from eventbus.schedules.timetable import Timetable
from eventbus.telemetry import spans as telemetry
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Seen = tuple[dict[str, Any], str, str]

_TICK = Event("tick", payload=int)
_report = Workflow("nightly", input=int, output=int)


class _Told:
    """What the flows of one test have told."""

    queue: asyncio.Queue[Seen]


@pytest.fixture(autouse=True)
def fresh() -> None:
    _Told.queue = asyncio.Queue()  # one for each event loop


@_report.step
async def gather(ctx: StepContext[int]) -> int:
    _Told.queue.put_nowait((dict(ctx.meta or {}), ctx.correlation_id, ""))
    return ctx.input


@_report.completed
async def tell(ctx: StepContext[int]) -> int:
    return ctx.result(gather)


@durable("summarize")
async def summarize(ctx: FlowContext[int]) -> int:
    _Told.queue.put_nowait((dict(ctx.meta or {}), ctx.correlation_id, ""))
    return ctx.input


def _collect(provider: EventProvider) -> asyncio.Queue[Seen]:
    seen: asyncio.Queue[Seen] = asyncio.Queue()

    @provider.on(_TICK)
    async def tick(_number: int, ctx: EventContext) -> None:
        trace = ctx._trace  # pyright: ignore[reportPrivateUsage]
        seen.put_nowait((dict(ctx.meta), ctx.correlation_id, trace))

    return seen


def _check(seen: Seen, schedule: str, meta: dict[str, Any], chain: str) -> None:
    own = {name: value for name, value in seen[0].items() if name not in ("schedule", "slot")}
    assert (own, seen[0]["schedule"], seen[1]) == (meta, schedule, chain)
    assert isinstance(seen[0]["slot"], int)


async def test_each_firing_has_the_meta_and_the_correlation_id_around_the_add(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    seen = _collect(provider)
    async with provider, provider.worker():
        with provider.context(correlation_id="chain-1", tenant="acme", user="ann"):
            added = await provider.schedules.add(
                _TICK,
                id="s",
                every="1 hour",
                payload=1,
                meta={"user": "bob", "slot": "mine"},
                immediately=True,
            )
        meta = {"tenant": "acme", "user": "bob"}
        _check(await asyncio.wait_for(seen.get(), 240), "s", meta, "chain-1")
        await added.run_now()
        _check(await asyncio.wait_for(seen.get(), 240), "s", meta, "chain-1")
        [slot] = await added.next(1)
        await added.backfill(slot, slot)
        _check(await asyncio.wait_for(seen.get(), 240), "s", meta, "chain-1")


async def test_a_declared_schedule_has_its_meta_and_what_was_around_its_declaration(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    seen = _collect(provider)
    with provider.context(correlation_id="release-7", team="ops"):
        provider.schedules.every("1 hour", _TICK, id="s", payload=1, meta={"a": 1}, immediately=True)
    async with provider, provider.worker():
        _check(await asyncio.wait_for(seen.get(), 240), "s", {"team": "ops", "a": 1}, "release-7")


@pytest.mark.parametrize("kind", ["graph", "function"])
async def test_flows_of_schedules_have_them_too(make_provider: MakeProvider, kind: str) -> None:
    provider = make_provider()
    flows, workflow = WorkflowProvider(provider), _report if kind == "graph" else summarize
    flows.register(workflow)
    with provider.context(correlation_id="declared"):
        flows.schedules.every("1 hour", workflow, id="d", input=1, meta={"n": 1}, immediately=True)
    async with provider, provider.worker():
        _check(await asyncio.wait_for(_Told.queue.get(), 240), "d", {"n": 1}, "declared")
        with provider.context(correlation_id="added", tenant="acme"):
            added = await flows.schedules.add(workflow, id="a", every="1 hour", input=1)
        flow = await added.run_now()
        _check(await asyncio.wait_for(_Told.queue.get(), 240), "a", {"tenant": "acme"}, "added")
        assert (await flows.handle(flow, workflow).result(timeout=240)) is not False


async def test_the_job_of_a_schedule_belongs_to_the_trace_that_made_it(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = TracerProvider()
    monkeypatch.setattr(telemetry.trace, "_TRACER_PROVIDER", sdk)
    provider = make_provider()
    seen = _collect(provider)
    async with provider, provider.worker():
        with sdk.get_tracer("test").start_as_current_span("request") as span:
            added = await provider.schedules.add(_TICK, id="s", every="1 hour", payload=1)
        await added.run_now()
        (_, _, trace) = await asyncio.wait_for(seen.get(), 240)
        assert trace.split("-")[1] == f"{span.get_span_context().trace_id:032x}"


async def test_another_correlation_id_alone_is_no_change_and_other_meta_is_one(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    async with provider:

        async def add(chain: str, meta: dict[str, Any]) -> str:
            with provider.context(correlation_id=chain):
                await provider.schedules.add(_TICK, id="s", every="1 hour", payload=1, meta=meta)
            return (await provider.schedules.find_row("s"))[1].gen

        first = await add("one", {"a": 1})
        assert await add("two", {"a": 1}) == first
        assert await add("two", {"a": 2}) != first


async def test_meta_that_cannot_be_sent_is_refused(provider: EventProvider) -> None:
    async with provider:
        wrong: Any = ["x"]
        with pytest.raises(DefinitionError, match="meta"):
            await provider.schedules.add(_TICK, id="s", every="1 hour", payload=1, meta=wrong)
        with pytest.raises(PayloadError, match="meta"):
            await provider.schedules.add(_TICK, id="s", every="1 hour", payload=1, meta={"x": float("nan")})
        assert await provider.schedules.list() == []


def test_a_schedule_of_an_earlier_release_fires_as_it_did() -> None:
    old = decode_plan(
        b'{"event":"nightly","queue":"workflow.nightly","table":{"every":3600000},"payload":{"i":1},'
        b'"root":{"meta":"m","key":"k","chain":"c"}}'
    )
    now = Plan("nightly", "workflow.nightly", Timetable(every=3_600_000), payload=msgspec.Raw(b'{"i":1}'))
    now = msgspec.structs.replace(now, root=RootForm("m", "k", "c"))
    assert old.digest() == now.digest()
    assert old.body("s", 7, "job") == '{"i":1,"m":{"schedule":"s","slot":7},"k":"sched:s:7","c":"job"}'
