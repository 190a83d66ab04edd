"""Retry by hand of flows whose steps were kept in the middle of the graph, or inside a sub-workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from workflows import FlowCancelled, FlowHandle, Signal, StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

_ONCE = Retry(attempts=1)


@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
async def test_who_waited_for_a_kept_step_waits_for_what_that_one_waited_for(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    # first -> kept -> last: `first` was undone, `kept` was not; `last` needs what `first` does again.
    provider = make_provider()
    flows = WorkflowProvider(provider)
    chain = Workflow[Any, Any]("chain", retry=_ONCE, spread=spread)
    did: list[str] = []
    broken = [True]

    @chain.step()
    async def first(ctx: StepContext[Any]) -> int:
        did.append("first")
        return ctx.run

    @first.rollback
    async def undo(ctx: StepContext[Any], run: int) -> None:
        did.append(f"undo {run}")

    @chain.step()
    async def kept(ctx: StepContext[Any]) -> int:
        return ctx.run

    @chain.step()
    async def last(ctx: StepContext[Any]) -> list[int]:
        if broken[0]:
            raise ValueError("broken")
        return [ctx.result(first), ctx.result(kept), ctx.run]

    @chain.completed
    async def outcome(ctx: StepContext[Any]) -> list[int]:
        return ctx.result(last)

    flows.register(chain)
    async with provider, provider.worker():
        handle = await flows.execute(chain, None)
        with pytest.raises(StepError):
            await handle.result()
        broken[0] = False
        assert await (await flows.retry(handle.id)).result() == [2, 1, 2]
    assert did == ["first", "undo 1", "first"]


@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
async def test_a_sub_workflow_counts_as_long_as_nothing_of_it_was_undone(
    make_provider: MakeProvider, *, undone: bool, spread: bool
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    outer = Workflow[Any, Any]("outer", retry=_ONCE)
    inner = Workflow[Any, Any]("inner", retry=_ONCE, spread=spread)
    did: list[str] = []
    broken = [True]

    @inner.step()
    async def pay(ctx: StepContext[Any]) -> str:
        did.append("pay")
        return "paid"

    async def refund(ctx: StepContext[Any], paid: str) -> None:
        did.append("refund")

    if undone:
        pay.rollback(refund)

    @inner.completed
    async def paid(ctx: StepContext[Any]) -> str:
        return ctx.result(pay)

    payment = outer.flow(inner, name="payment")

    @outer.step()
    async def ship(ctx: StepContext[Any]) -> str:
        if broken[0]:
            raise ValueError("broken")
        return ctx.result(payment)

    @outer.completed
    async def outcome(ctx: StepContext[Any]) -> str:
        return ctx.result(ship)

    flows.register(outer)
    async with provider, provider.worker():
        handle = await flows.execute(outer, None)
        with pytest.raises(StepError):
            await handle.result()
        broken[0] = False
        assert await (await flows.retry(handle.id)).result() == "paid"
    assert did == (["pay", "refund", "pay"] if undone else ["pay"])


async def test_steps_that_a_root_adds_itself_have_the_priority_of_their_flow(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    single = Workflow[Any, Any]("single", spread=True)

    @single.step()
    async def work(ctx: StepContext[Any]) -> str:
        return ctx.job_id

    @single.completed
    async def outcome(ctx: StepContext[Any]) -> str:
        return ctx.result(work)

    flows.register(single)
    async with provider, provider.worker():
        handle = await flows.execute(single, None, priority=-7)
        ids = [await handle.result(), await (await flows.retry(handle.id)).result()]
        store = provider.jobs._life.running("look").store  # pyright: ignore[reportPrivateUsage]
        looks = [await store.inspection.job(each) for each in ids]
    assert [each.split("/")[1] for each in ids] == ["1", "2"]
    assert [each.fields["priority"] for each in looks] == ["-7", "-7"]


async def test_a_sub_workflow_and_its_steps_have_the_priority_of_their_flow(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    inner, outer = Workflow[Any, Any]("inner", spread=True), Workflow[Any, Any]("outer")

    @inner.step()
    async def work(ctx: StepContext[Any]) -> str:
        return ctx.job_id

    @inner.completed
    async def outcome(ctx: StepContext[Any]) -> list[str]:
        return [ctx.flow_id, ctx.result(work)]

    nested = outer.flow(inner)

    @outer.completed
    async def end(ctx: StepContext[Any]) -> list[str]:
        return ctx.result(nested)

    flows.register(outer)
    async with provider, provider.worker():
        ids = await (await flows.execute(outer, None, priority=-7)).result()
        store = provider.jobs._life.running("look").store  # pyright: ignore[reportPrivateUsage]
        looks = [await store.inspection.job(each) for each in ids]
    assert [each.fields["priority"] for each in looks] == ["-7", "-7"]


_GO = Signal("go", str)


class _Waits:
    """A graph that waits between two steps, and whose last step may be broken."""

    def __init__(self, *, spread: bool, timeout: float) -> None:
        self.did: list[str] = []
        self.broken = False
        self.workflow = Workflow[Any, Any]("waits", retry=_ONCE, spread=spread)
        self.workflow.step(self.first).rollback(self.undo)
        self.workflow.wait(_GO, timeout=timeout, name="decision", after="first")
        self.workflow.step(self.last, after="decision")
        self.workflow.completed(self.end)

    async def first(self, ctx: StepContext[Any]) -> int:
        self.did.append("first")
        return ctx.run

    async def undo(self, ctx: StepContext[Any], run: int) -> None:
        self.did.append(f"undo {run}")

    async def last(self, ctx: StepContext[Any]) -> int:
        if self.broken:
            raise ValueError("broken")
        return ctx.run

    async def end(self, ctx: StepContext[Any]) -> list[Any]:
        return [ctx.result("first"), ctx.result("decision"), ctx.result("last")]


async def _states(flow: FlowHandle[Any]) -> dict[str, str]:
    return {name: step.state for name, step in (await flow.report()).steps.items()}


async def _wait_state(flow: FlowHandle[Any], step: str, state: str) -> None:
    async with asyncio.timeout(240):
        while (await _states(flow)).get(step) != state:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["timeout", "cancel", "broken"])
@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
async def test_a_graph_that_waits_is_retried_and_waits_again_unless_its_signal_came(
    make_provider: MakeProvider, *, spread: bool, how: str
) -> None:
    waits = _Waits(spread=spread, timeout=0.5 if how == "timeout" else 60)
    waits.broken = how == "broken"
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(waits.workflow)
    async with provider, provider.worker():
        flow = await flows.execute(waits.workflow, None)
        if how == "broken":
            await flow.signal(_GO, "one")
        elif how == "cancel":
            await _wait_state(flow, "first", "completed")  # a step that is not reached yet is waiting, too
            await _wait_state(flow, "decision", "waiting")
            await flow.cancel()
        with pytest.raises((StepError, FlowCancelled)):
            await flow.result()
        ended = {"timeout": "failed", "cancel": "cancelled", "broken": "completed"}[how]
        assert (await _states(flow))["decision"] == ended
        waits.broken = False
        again = await flows.retry(flow.id, workflow=waits.workflow)
        if how == "timeout":
            await _wait_state(again, "decision", "waiting")
        if how != "broken":
            await again.signal(_GO, "two")
        word = "one" if how == "broken" else "two"
        assert await again.result() == [2, word, 2]
        assert waits.did == ["first", "undo 1", "first"]
        report = await again.report()
        assert (report.state, report.run) == ("completed", 2)
        assert set((await _states(again)).values()) == {"completed"}
