"""Reports of flows tell input, output and state, without what is sensitive, for each kind of definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

from eventbus import EventProvider, Sensitive
from workflows import (
    END,
    FlowContext,
    MachineContext,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    transition,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
CARD = "4111-1111-1111"


class Order(msgspec.Struct):
    id: str
    card: Annotated[str, Sensitive()]


def _graph(*, spread: bool) -> Workflow[Order, Order]:
    paying = Workflow("paying", input=Order, output=Order, spread=spread)

    @paying.step
    async def pay(ctx: StepContext[Order]) -> int:
        return 1

    @paying.completed
    async def tell(ctx: StepContext[Order]) -> Order:
        return ctx.input

    return paying


@durable("paying-function", state=Order)
async def pay_by_code(ctx: FlowContext[Order]) -> Order:
    ctx.state = Order("state", ctx.input.card)
    return Order("output", ctx.input.card)


class Paying(StateMachine[Order], name="paying-machine", start="open"):
    @transition("open", to=END)
    async def pay(self, ctx: MachineContext[Order]) -> Order:
        ctx.state.id = "state"
        return Order("output", ctx.state.card)


_KINDS: dict[str, tuple[Any, str | None, str]] = {
    "local": (_graph(spread=False), None, "input"),
    "spread": (_graph(spread=True), None, "input"),
    "function": (pay_by_code, "state", "output"),
    "machine": (Paying, "state", "output"),
}


@pytest.mark.parametrize("kind", _KINDS)
async def test_a_report_has_input_output_and_state_without_what_is_sensitive(
    make_provider: MakeProvider, kind: str
) -> None:
    definition, state, output = _KINDS[kind]
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(definition)
    async with provider, provider.worker():
        flow = await flows.execute(definition, Order("input", CARD))
        assert (await flow.result(240)).card == CARD
        for report in (await flows.report(flow.id), (await flows.tree(flow.id)).report):
            told = report.own_state if report.machine is None else report.machine.state
            found = [report.input, told, report.output]
            assert [each and each["id"] for each in found] == ["input", state, output]
            assert CARD not in msgspec.json.encode([found, report.machine]).decode()
            assert "•••" in report.input["card"]
            assert report.left_out == []


async def test_long_values_of_nested_flows_are_left_out_of_the_tree_and_stand_in_their_own_report(
    make_provider: MakeProvider,
) -> None:
    @durable("inner")
    async def inner(ctx: FlowContext[str]) -> str:
        return "short"

    @durable("outer")
    async def outer(ctx: FlowContext[str]) -> str:
        return await ctx.flow(inner, ctx.input)

    provider, long = make_provider(), "x" * 20_000
    flows = WorkflowProvider(provider)
    flows.register(inner)
    flows.register(outer)
    async with provider, provider.worker():
        flow = await flows.execute(outer, long)
        assert await flow.result(240) == "short"
        tree = await flows.tree(flow.id)
        assert (tree.report.input, tree.report.output) == (long, "short")
        ((nested,),) = tree.nested.values()
        assert (nested.report.input, nested.report.output, nested.report.left_out) == (
            None,
            "short",
            ["input"],
        )
        assert (await flows.report(nested.report.flow_id)).input == long


async def test_a_flow_that_has_not_ended_has_no_output(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(pay_by_code)
    async with provider:
        flow = await flows.execute(pay_by_code, Order("input", CARD))
        report = await flow.report()
        assert (report.input["id"], report.output, report.own_state) == ("input", None, None)
