"""Children of state machines: started with a move, heard of once, and stopped with their machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from eventbus import Retry
from workflows import (
    END,
    FlowCancelled,
    FlowContext,
    MachineContext,
    Settled,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    transition,
)

pytestmark = pytest.mark.virtual

Open = Callable[..., Awaitable[WorkflowProvider]]
Until = Callable[..., Awaitable[None]]


class Page(msgspec.Struct):
    number: int


did: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    did.clear()


@durable("analyse", output=int, retry=Retry(attempts=1))
async def analyse(ctx: FlowContext[Page]) -> int:
    did.append(f"page {ctx.input.number}")
    if ctx.input.number < 0:
        raise ValueError(f"page {ctx.input.number} cannot be read")
    return ctx.input.number * 10


graph: Workflow[int, int] = Workflow("graph", input=int, output=int)


@graph.step()
async def double(ctx: StepContext[int]) -> int:
    return 2 * ctx.input


@graph.completed
async def result(ctx: StepContext[int]) -> int:
    return ctx.result(double)


class Inner(StateMachine[int], name="inner", start="a"):
    @transition("a", to=END)
    async def go(self, ctx: MachineContext[int]) -> int:
        return ctx.state + 1


class Hanging(StateMachine[int], name="hanging", start="a"):
    @transition("a", to="b")
    async def begin(self, ctx: MachineContext[int]) -> None: ...

    @begin.rollback
    async def unbegin(self, ctx: MachineContext[int]) -> None:
        did.append(f"unbegin {ctx.state}")

    @transition("b", to=END, wait=None)
    async def end(self, ctx: MachineContext[int], payload: None) -> None: ...


class Fanning(StateMachine[list[int]], name="fanning", start="a"):
    @transition("a", to="analysing")
    async def begin(self, ctx: MachineContext[list[int]]) -> None:
        ctx.children(analyse, [Page(each) for each in ctx.state])
        ctx.children(graph, [21])
        ctx.children(Inner, [7])

    @transition("analysing", to="lost", after="all_settled", when=lambda _, settled: settled.has_error)
    async def note(self, ctx: MachineContext[list[int]], settled: Settled) -> None:
        did.append(f"note {settled.results} {[type(each).__name__ for each in settled.errors]}")

    @transition("analysing", to=END, after="all_settled")
    async def collect(self, ctx: MachineContext[list[int]], settled: Settled) -> list[int]:
        did.append("collect")
        return settled.results

    @transition("lost", to=END)
    async def give_up(self, ctx: MachineContext[list[int]]) -> list[int]:
        return []


async def test_l038_the_machine_hears_once_of_children_of_every_kind(open_flows: Open) -> None:
    """Defects F5 and F9: the parent heard twice, and children were started twice."""
    flows = await open_flows(Fanning, analyse, graph, Inner)
    flow = await flows.execute(Fanning, [1, 2, 3])
    assert await flow.result(timeout=240) == [10, 20, 30, 42, 8]
    assert sorted(did) == ["collect", "page 1", "page 2", "page 3"]
    assert (await flow.report()).order == ["begin@1", "collect@2"]
    assert len((await flows.tree(flow.id)).nested) == 5


async def test_l039_a_guard_takes_the_branch_of_a_failed_child(open_flows: Open) -> None:
    flows = await open_flows(Fanning, analyse, graph, Inner)
    flow = await flows.execute(Fanning, [1, -1])
    assert await flow.result(timeout=240) == []
    assert "note [10, 42, 8] ['StepError']" in did


class Strict(StateMachine[list[int]], name="strict", start="a"):
    @transition("a", to="analysing")
    async def begin(self, ctx: MachineContext[list[int]]) -> None:
        ctx.children(analyse, [Page(each) for each in ctx.state])
        ctx.children(Hanging, [5])

    @transition("analysing", to=END, after="all", error_place="lost")
    async def collect(self, ctx: MachineContext[list[int]], settled: Settled) -> None:
        did.append("collect")

    @transition("lost", to=END)
    async def give_up(self, ctx: MachineContext[list[int]]) -> str:
        return ctx.error


async def test_l046_with_all_the_first_failure_cancels_the_others_and_skips_the_body(
    open_flows: Open,
) -> None:
    flows = await open_flows(Strict, analyse, Hanging)
    flow = await flows.execute(Strict, [-3])
    assert "page -3 cannot be read" in await flow.result(timeout=240)
    assert did == ["page -3", "unbegin 5"], "the machine that was cancelled has undone itself"


async def test_l041_a_cancel_reaches_all_descendants_and_the_caller_hears_once(
    open_flows: Open, until: Until
) -> None:
    class Outer(StateMachine[int], name="outer", start="a"):
        @transition("a", to="b")
        async def begin(self, ctx: MachineContext[int]) -> None:
            ctx.children(Middle, [ctx.state, ctx.state + 1])

        @transition("b", to=END, after="all")
        async def collect(self, ctx: MachineContext[int], settled: Settled) -> None:
            did.append("collect")

    class Middle(StateMachine[int], name="middle", start="a"):
        @transition("a", to="b")
        async def begin(self, ctx: MachineContext[int]) -> None:
            ctx.children(Hanging, [ctx.state * 10])

        @transition("b", to=END, after="all")
        async def collect(self, ctx: MachineContext[int], settled: Settled) -> None:
            did.append("collect")

    flows = await open_flows(Outer, Middle, Hanging)
    flow = await flows.execute(Outer, 1)

    async def all_wait() -> bool:
        tree = await flows.tree(flow.id)
        inner = [leaf for (middle,) in tree.nested.values() for (leaf,) in middle.nested.values()]
        places = [each.report.machine.place for each in inner if each.report.machine is not None]
        return places == ["b", "b"]

    await until(all_wait, "the innermost machines wait")
    assert await flow.cancel("enough")
    with pytest.raises(FlowCancelled, match="enough"):
        await flow.result(timeout=240)
    assert sorted(did) == ["unbegin 10", "unbegin 20"]
    assert not await flow.cancel("again"), "L-042: a second one finds it ended"


async def test_a_machine_at_its_end_waits_for_children_that_nobody_hears_of(
    open_flows: Open, until: Until
) -> None:
    class Leaving(StateMachine[int], name="leaving", start="a"):
        @transition("a", to=END)
        async def begin(self, ctx: MachineContext[int]) -> str:
            ctx.children(analyse, [Page(1), Page(-1)])
            return "left"

    flows = await open_flows(Leaving, analyse)
    flow = await flows.execute(Leaving, 0)
    assert await flow.result(timeout=240) == "left"
    assert sorted(did) == ["page -1", "page 1"]


async def test_children_of_a_body_that_failed_are_never_started(open_flows: Open, until: Until) -> None:
    class Broken(StateMachine[int], name="broken", start="a"):
        @transition("a", to=END)
        async def begin(self, ctx: MachineContext[int]) -> None:
            ctx.children(analyse, [Page(1)])
            raise ValueError("after all")

    flows = await open_flows(Broken, analyse)
    flow = await flows.execute(Broken, 0)

    async def has_failed() -> bool:
        return "after all" in (await flow.report()).error

    await until(has_failed, "it stands with its error")
    assert (await flows.tree(flow.id)).nested == {}
    assert did == []
    assert await flow.cancel()


async def test_a_workflow_that_is_not_registered_with_the_machine_fails_the_transition(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Strict, analyse)
    flow = await flows.execute(Strict, [1])

    async def has_failed() -> bool:
        return "workflow 'hanging' is not registered" in (await flow.report()).error

    await until(has_failed, "it stands with its error")
    assert await flow.cancel()
