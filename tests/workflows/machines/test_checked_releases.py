"""`eventbus flows check`: what a new release lacks that open flows of state machines and graphs need is told
before it is deployed."""

from __future__ import annotations

import types
from typing import Any

import pytest
from drivers.machines.acting import Open, Until, stands_at

from eventbus import EventProvider, Retry
from workflows import (
    END,
    FlowContext,
    MachineContext,
    Signal,
    StateMachine,
    StepContext,
    StepRegistry,
    Workflow,
    durable,
    transition,
)
from workflows.client.flow_check import CheckedFlow, check_release

pytestmark = pytest.mark.virtual

approval: Signal[bool] = Signal("approval", bool)


@durable("checked-child", output=int)
async def child(ctx: FlowContext[int]) -> int:
    await ctx.wait_for(approval)
    return 1


def make_machine(
    *, place: str = "waiting", trigger: str = "approve", has_undo: bool = True, state: Any = int
) -> type[StateMachine[Any]]:
    """Return one release of a machine."""

    async def prepare(self: Any, ctx: MachineContext[Any]) -> None:
        ctx.children(child, [1])

    async def undo(self: Any, ctx: MachineContext[Any]) -> None: ...

    async def approve(self: Any, ctx: MachineContext[Any], payload: None) -> None: ...

    approve.__name__ = trigger
    made = transition("draft", to=place)(prepare)
    if has_undo:
        made.rollback(undo)
    body = {"prepare": made, trigger: transition(place, to=END, wait=None)(approve)}
    options = {"name": "checked", "start": "draft"}
    return types.new_class("Checked", (StateMachine[state],), options, lambda space: space.update(body))


def registry_with(*workflows: Any) -> StepRegistry:
    registry = StepRegistry()
    for each in workflows:
        registry.register(each)
    return registry


async def check(provider: EventProvider, *workflows: Any) -> list[CheckedFlow]:
    return [each async for each in check_release(registry_with(*workflows), provider.jobs)]


async def told(provider: EventProvider, *workflows: Any) -> list[tuple[str, str, str]]:
    found = await check(provider, *workflows)
    return [(each.position, each.recorded, each.asked) for flow in found for each in flow.mismatches]


async def test_what_a_release_of_a_machine_lacks_is_told(open_flows: Open, until: Until) -> None:
    old = make_machine()
    flows = await open_flows(old, child)
    provider = flows.provider
    flow = await flows.execute(old, 1)
    await stands_at(flow, "waiting", until)
    assert await told(provider, old, child) == []
    lost = await told(provider, make_machine(place="reviewing"), child)
    assert lost == [("waiting", "place 'waiting'", "no such place")]
    renamed = await told(provider, make_machine(trigger="accept"), child)
    assert renamed == [("waiting", "trigger 'approve'", "no such trigger at this place")]
    bare = await told(provider, make_machine(has_undo=False), child)
    assert bare == [("waiting", "the rollback of prepare@1", "no such rollback")]
    ((_, what, _),) = await told(provider, make_machine(state=list[str]), child)
    assert what == "its state"
    ((_, what, why),) = await told(provider, old)
    assert what.startswith("child ")
    assert "of workflow checked-child" in why
    await flow.cancel()


async def test_a_transition_that_is_to_be_tried_again_and_is_gone_is_told(
    open_flows: Open, until: Until
) -> None:
    class Old(StateMachine[int], name="tried", start="a"):
        @transition("a", to=END, retry=Retry(attempts=2, delay="1 hour"))
        async def work(self, ctx: MachineContext[int]) -> None:
            raise ValueError("not yet")

    class New(StateMachine[int], name="tried", start="a"):
        @transition("a", to=END)
        async def other(self, ctx: MachineContext[int]) -> None: ...

    flows = await open_flows(Old)
    flow = await flows.execute(Old, 1)
    await stands_at(flow, "a", until)
    assert await told(flows.provider, Old) == []
    assert await told(flows.provider, New) == [
        ("a", "transition 'work', which failed", "no such transition from 'a'")
    ]
    await flow.cancel()


def _graph(*steps: str, version: str | None = None) -> Workflow[None, Any]:
    workflow: Workflow[None, Any] = Workflow("checked-graph", output=Any, version=version)
    for name in steps:

        async def run(ctx: StepContext[None]) -> None: ...

        workflow.step(run, name=name)
    workflow.wait(approval, name="asked")
    return workflow


@pytest.mark.parametrize("version", ["1", None])
async def test_open_flows_of_a_graph_whose_steps_have_changed_are_told(
    version: str | None, open_flows: Open, until: Until
) -> None:
    old, new = _graph("first", version=version), _graph("first", "second", version=version)
    flows = await open_flows(old)
    flow = await flows.execute(old, None)

    async def is_waiting() -> bool:
        return (await flow.status()).state == "waiting"

    await until(is_waiting, "the flow waits")
    assert await check(flows.provider, old) == [CheckedFlow(flow.id)]
    (found,) = await check(flows.provider, new)
    if version is None:
        assert found == CheckedFlow(flow.id, version=old.version), "the workers of the old release go on"
    else:
        assert [each.recorded for each in found.mismatches] == ["version 1 with or without step second"]
    await flow.cancel()
