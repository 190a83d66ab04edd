"""Signals and triggers that are sent by the id of a flow: what would arrive as something else is refused to
its sender.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, PayloadError, UnknownJob
from workflows import (
    END,
    Durable,
    FlowContext,
    MachineContext,
    Signal,
    StateMachine,
    Workflow,
    WorkflowProvider,
    durable,
    transition,
)
from workflows.testing import run_inline, start_inline

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

GO = Signal("go", Any)
WHEN = Signal("when", datetime)
_deep: Any = None
for _ in range(120):
    _deep = [_deep]
BAD = {
    "nan": math.nan,
    "infinity": {"rate": math.inf},
    "set": {1, 2},
    "keys": {1: "a"},
    "surrogate": ["\ud800"],
    "surrogate key": {"\udfff": 1},
    "bytes": b"ab",
    "object": object(),
    "deep": _deep,
    "tuple": (1, 2),
}


@durable("takes-any")
async def takes_any(ctx: FlowContext[None]) -> Any:
    return await ctx.wait_for(GO)


@durable("takes-time", signals=[WHEN])
async def takes_time(ctx: FlowContext[None]) -> bool:
    return (await ctx.wait_for(WHEN)).year == 2026


def _graph(name: str = "takes-in-graph", *, spread: bool = False) -> Workflow[Any, Any]:
    graph = Workflow[Any, Any](name, spread=spread)
    wait = graph.wait(GO)

    @graph.completed
    async def done(ctx: Any) -> Any:
        return ctx.result(wait)

    return graph


class Takes(StateMachine[dict[str, Any]], start="open"):
    """Waits for one trigger."""

    @transition("open", to=END, wait=dict[str, list[int]])
    async def go(self, ctx: MachineContext[dict[str, Any]], payload: dict[str, list[int]]) -> None:
        ctx.state = {"got": payload}


LOCAL, SPREAD = _graph(), _graph("takes-spread", spread=True)
KINDS: list[Any] = [takes_any, LOCAL, SPREAD, Takes]


def _flows(provider: EventProvider, *kinds: Any) -> WorkflowProvider:
    flows = WorkflowProvider(provider)
    for kind in kinds:
        flows.register(kind)
    return flows


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
async def test_what_would_arrive_as_something_else_is_refused_by_every_way(
    make_provider: MakeProvider, value: Any
) -> None:
    first, second = make_provider(), make_provider()
    known, strange = _flows(first, *KINDS), _flows(second)
    async with first, second:
        for kind in KINDS:
            flow = await known.execute(kind, {} if kind is Takes else None)
            ways: list[Any] = []
            for flows in (known, strange):
                ways.append(lambda flow=flow, flows=flows: flows.signal(flow.id, "go", value))
                handle = flows.handle(flow.id)
                by_name = handle.trigger if kind is Takes else handle.signal
                ways.append(lambda by_name=by_name: by_name("go", value))
            for way in ways:
                with pytest.raises(PayloadError):
                    await way()
            assert await first.jobs.inbox(flow.id) == [], "nothing was sent"


@pytest.mark.parametrize("kind", KINDS, ids=["function", "local", "spread", "machine"])
async def test_a_signal_by_its_name_arrives(make_provider: MakeProvider, kind: Any) -> None:
    provider = make_provider()
    flows = _flows(provider, kind)
    async with provider, provider.worker():
        is_machine = kind is Takes
        for way in ("handle", "id"):
            flow = await flows.execute(kind, {} if is_machine else None)
            if is_machine:
                while (report := await flow.report()).machine is None or not report.machine.accepts:
                    pass
            if way == "id":
                await flows.signal(flow.id, "go", {"a": [1]})
            else:
                await (flow.trigger if is_machine else flow.signal)("go", {"a": [1]})
            result = await flow.result(240)
            assert (await flow.state() if is_machine else result) == (
                {"got": {"a": [1]}} if is_machine else {"a": [1]}
            )


async def test_a_value_of_the_declared_type_or_its_json_may_be_sent_by_name(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = _flows(provider, takes_time)
    when = datetime(2026, 11, 26, tzinfo=UTC)
    async with provider, provider.worker():
        for payload in (when, when.isoformat()):
            flow = await flows.execute(takes_time, None)
            await flows.signal(flow.id, "when", payload)
            assert await flow.result(240)
        flow = await flows.execute(takes_time, None)
        await flow.signal("when", when)
        assert await flow.result(240)
        flow = await flows.execute(takes_time, None)
        with pytest.raises(PayloadError, match="signal 'when' failed its validation"):
            await flow.signal("when", when.isoformat())
        await flow.cancel()


async def test_a_signal_may_be_given_as_itself_to_the_flow_of_an_id(make_provider: MakeProvider) -> None:
    provider, other = make_provider(), make_provider()
    flows, strange = _flows(provider, takes_time, Takes), _flows(other)
    when = datetime(2026, 11, 26, tzinfo=UTC)
    async with provider, provider.worker(), other:
        for sender in (flows, strange):
            flow = await flows.execute(takes_time, None)
            with pytest.raises(PayloadError, match="signal 'when' failed its validation"):
                await sender.signal(flow.id, WHEN, 7)
            with pytest.raises(DefinitionError, match="declares no signal 'go'"):
                await flows.signal(flow.id, GO, 7)
            await sender.signal(flow.id, WHEN, when)
            assert await flow.result(240)
            machine = await flows.execute(Takes, {})
            with pytest.raises(DefinitionError, match="takes triggers and no signals"):
                await sender.signal(machine.id, GO, 7)
            await machine.cancel()


@pytest.mark.parametrize("name", ["", "two words", "!go", "\ud800", 7, None])
async def test_a_name_that_no_signal_can_have_is_refused(make_provider: MakeProvider, name: Any) -> None:
    provider = make_provider()
    flows = _flows(provider, takes_any)
    async with provider:
        flow = await flows.execute(takes_any, None)
        with pytest.raises(DefinitionError):
            await flow.signal(name, 1)
        with pytest.raises(DefinitionError):
            await flows.signal(flow.id, name, 1)
        with pytest.raises((DefinitionError, UnknownJob)):
            await flows.signal("takes-any~nobody", "go", 1)


async def test_a_state_machine_takes_no_signal_also_where_nobody_knows_it(
    make_provider: MakeProvider,
) -> None:
    provider, other = make_provider(), make_provider()
    flows, strange = _flows(provider, Takes), _flows(other)
    async with provider, other:
        flow = await flows.execute(Takes, {})
        for handle in (flow, strange.handle(flow.id), strange.handle(flow.id, Takes)):
            with pytest.raises(DefinitionError, match=r"takes triggers and no signals; use trigger\('go'"):
                await handle.signal("go", 1)


@pytest.mark.parametrize("given", ["go", GO])
async def test_inline_flows_take_signals_by_their_names(given: Any) -> None:
    assert await run_inline(takes_any, None, signals=[(given, 7)]) == 7
    assert await run_inline(LOCAL, None, signals=[(given, 7)]) == 7
    handle = start_inline(LOCAL, None)
    await handle.signal(given, 7)
    assert await handle.result() == 7
    with pytest.raises(PayloadError):
        await run_inline(takes_any, None, signals=[(given, math.nan)])
    assert isinstance(takes_time, Durable)
    with pytest.raises(DefinitionError, match="did you mean 'when'"):
        await run_inline(takes_time, None, signals=[("wen", 7)])
    with pytest.raises(DefinitionError, match="did you mean 'go'"):
        await run_inline(LOCAL, None, signals=[("goo", 7)])
