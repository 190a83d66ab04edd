"""Paused steps: no worker begins an attempt, everything else goes on, and a resume lets each flow go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, Limit, Retry
from workflows import (
    FlowCancelled,
    FlowContext,
    FlowHandle,
    FlowTimeout,
    Signal,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    step,
)
from workflows.distributed.paused_steps import PausedSteps

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

QUEUE = "workflow.checkout.steps/charge"
QUICK = Retry(attempts=3, delay="10ms")

both = pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])


class Checkout:
    """A workflow of four steps, and what they did."""

    def __init__(self, *, spread: bool = False, limit: Limit | None = None, fails: int = 0) -> None:
        self.did: list[str] = []
        self.fails = fails
        self.failed = asyncio.Event()
        self.go_on = asyncio.Event()
        self.workflow = Workflow[Any, Any]("checkout", spread=spread, retry=QUICK)
        self.workflow.step(self.reserve).rollback(self.release)
        self.workflow.step(self.charge, limit=limit).rollback(self.refund)
        self.workflow.step(self.notify, after="reserve")
        self.workflow.step(self.ship, after=["charge", "notify"])

        @self.workflow.completed
        async def end(ctx: StepContext[Any]) -> Any:
            return ctx.result("charge")

    async def reserve(self, ctx: StepContext[Any]) -> None:
        self.did.append("reserve")

    async def release(self, ctx: StepContext[Any], result: Any) -> None:
        self.did.append("release")

    async def charge(self, ctx: StepContext[Any]) -> Any:
        self.did.append("charge")
        if self.fails:
            self.fails -= 1
            self.failed.set()
            await self.go_on.wait()
            raise ConnectionError("the bank is down")
        return ctx.input

    async def refund(self, ctx: StepContext[Any], result: Any) -> None:
        self.did.append("refund")

    async def notify(self, ctx: StepContext[Any]) -> None:
        self.did.append("notify")

    async def ship(self, ctx: StepContext[Any]) -> None:
        self.did.append("ship")


def make_flows(provider: EventProvider, checkout: Checkout) -> WorkflowProvider:
    flows = WorkflowProvider(provider)
    flows.register(checkout.workflow)
    return flows


async def _wait_held(flows: WorkflowProvider, count: int = 1, queue: str = QUEUE) -> None:
    """Wait until so many attempts wait for the resume of their step."""
    async with asyncio.timeout(240):
        while (await flows.provider.inspector.queues.controls(queue))[0].waiting != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _assert_nothing_is_left(flows: WorkflowProvider) -> None:
    assert await flows.provider.inspector.queues.controls() == []
    assert (await flows.provider.inspector.queues.controls(QUEUE))[0].waiting == 0


@both
async def test_no_attempt_begins_while_other_steps_go_on(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    checkout = Checkout(spread=spread)
    flows = make_flows(make_provider(), checkout)
    async with flows.provider:
        await flows.pause(checkout.workflow, step="charge", reason="the bank is down", by="ann")
        (order,) = await flows.provider.inspector.queues.controls()
        assert (order.queue, order.is_paused, order.reason, order.paused_by) == (
            QUEUE,
            True,
            "the bank is down",
            "ann",
        )
        async with flows.provider.worker():
            handle = await flows.execute(checkout.workflow, 7)
            await _wait_held(flows)
            assert await _states(handle, "notify") == ["completed"]
            assert sorted(checkout.did) == ["notify", "reserve"]
            assert (await handle.report()).state != "completed"
            await flows.resume(checkout.workflow, step="charge")
            assert await handle.result() == 7
            assert checkout.did[-2:] == ["charge", "ship"]
            await _assert_nothing_is_left(flows)


async def _states(handle: FlowHandle[Any], *steps: str) -> list[str]:
    async with asyncio.timeout(240):
        while True:
            report = await handle.report()
            states = [report.steps[step].state for step in steps]
            if all(state == "completed" for state in states):
                return states
            await asyncio.sleep(0.01)


@both
async def test_many_flows_wait_without_a_slot_and_all_go_on(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    """They are more than a call of the resume brings back."""
    checkout, other = Checkout(spread=spread), Workflow[Any, Any]("other")

    @other.step()
    async def run(ctx: StepContext[Any]) -> int:
        return 1

    @other.completed
    async def end(ctx: StepContext[Any]) -> int:
        return ctx.result(run)

    flows = make_flows(make_provider(concurrency=5), checkout)
    flows.register(other)
    async with flows.provider, flows.provider.worker():
        await flows.pause("checkout", step="charge")
        handles = [await flows.execute(checkout.workflow, n) for n in range(230)]
        await _wait_held(flows, 230)
        assert await (await flows.execute(other, None)).result() == 1
        await flows.resume("checkout", step="charge")
        assert [await each.result() for each in handles] == [*range(230)]
        assert checkout.did.count("charge") == 230
        await _assert_nothing_is_left(flows)


@both
async def test_a_flow_whose_step_waits_can_be_cancelled_and_is_undone(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    checkout = Checkout(spread=spread)
    flows = make_flows(make_provider(), checkout)
    async with flows.provider, flows.provider.worker():
        await flows.pause(checkout.workflow, step="charge")
        handle = await flows.execute(checkout.workflow, 7)
        await _wait_held(flows)
        assert await handle.cancel("too late")
        with pytest.raises(FlowCancelled) as caught:
            await handle.result()
        assert caught.value.rollback == "complete"
        assert [each for each in checkout.did if each in ("charge", "refund", "release")] == ["release"]
        await _wait_held(flows, 0)
        await flows.resume(checkout.workflow, step="charge")
        await _assert_nothing_is_left(flows)


@both
async def test_the_timeout_of_a_flow_counts_on(make_provider: MakeProvider, *, spread: bool) -> None:
    checkout = Checkout(spread=spread)
    flows = make_flows(make_provider(), checkout)
    async with flows.provider, flows.provider.worker():
        await flows.pause(checkout.workflow, step="charge")
        handle = await flows.execute(checkout.workflow, 7, timeout="2s")
        with pytest.raises(FlowTimeout):
            await handle.result()
        assert "charge" not in checkout.did


@both
async def test_the_rollback_of_a_paused_step_runs(make_provider: MakeProvider, *, spread: bool) -> None:
    checkout = Checkout(spread=spread)
    flows = make_flows(make_provider(), checkout)
    async with flows.provider, flows.provider.worker():
        await flows.pause(checkout.workflow, step="ship")
        handle = await flows.execute(checkout.workflow, 7)
        await _wait_held(flows, queue="workflow.checkout.steps/ship")
        await flows.pause(checkout.workflow, step="charge")
        await handle.cancel()
        with pytest.raises(FlowCancelled):
            await handle.result()
        assert "refund" in checkout.did


@both
async def test_workers_may_come_and_go_during_a_pause(make_provider: MakeProvider, *, spread: bool) -> None:
    checkout = Checkout(spread=spread)
    first, second = make_flows(make_provider(), checkout), make_flows(make_provider(), checkout)
    async with make_provider() as caller:
        flows = make_flows(caller, checkout)
        await flows.pause(checkout.workflow, step="charge")
        async with first.provider.worker():
            handle = await flows.execute(checkout.workflow, 7)
            await _wait_held(flows)
        await flows.resume(checkout.workflow, step="charge")  # nobody serves the workflow now
        async with second.provider.worker():
            assert await handle.result() == 7


@both
async def test_who_held_attempts_back_hears_of_the_resume_at_once(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, *, spread: bool
) -> None:
    """Else it would claim each attempt over and over, for as long as it relies on what it heard of
    the pause.
    """
    held, find = list[str](), PausedSteps.find_shelf

    async def find_shelf(paused: PausedSteps, workflow: str, step: str, job: str = "") -> str:
        shelf = await find(paused, workflow, step, job)
        held.extend([step] if shelf else [])
        return shelf

    monkeypatch.setattr(PausedSteps, "find_shelf", find_shelf)
    monkeypatch.setattr("workflows.distributed.paused_steps.FRESH", 600)
    checkout = Checkout(spread=spread)
    flows = make_flows(make_provider(), checkout)
    async with flows.provider:
        await flows.pause(checkout.workflow, step="charge")
        async with flows.provider.worker():
            handle = await flows.execute(checkout.workflow, 7)
            await _wait_held(flows)
            held.clear()
            await asyncio.sleep(0.06)  # for so long it may rely on that
            await flows.resume(checkout.workflow, step="charge")
            assert await handle.result() == 7
            assert held == []


@both
async def test_items_of_a_list_wait_too(make_provider: MakeProvider, until: Until, *, spread: bool) -> None:
    workflow, did = Workflow[Any, Any]("checkout"), list[int]()

    @workflow.each(over=lambda ctx: ctx.input, at_once=2, spread=spread, name="charge")
    async def charge(ctx: StepContext[Any], item: int) -> int:
        did.append(item)
        return item * 2

    @workflow.completed
    async def end(ctx: StepContext[Any]) -> Any:
        return ctx.result(charge)

    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, flows.provider.worker():
        await flows.pause(workflow, step=charge)
        handle = await flows.execute(workflow, [1, 2, 3, 4, 5])
        await _wait_held(flows, 2)  # at_once
        assert did == []
        await flows.resume(workflow, step=charge)
        assert await handle.result() == [2, 4, 6, 8, 10]
        await _assert_nothing_is_left(flows)


@both
async def test_a_step_with_a_limit_waits_in_its_queue(make_provider: MakeProvider, *, spread: bool) -> None:
    checkout = Checkout(spread=spread, limit=Limit(at_once=1))
    flows = make_flows(make_provider(), checkout)
    async with flows.provider, flows.provider.worker():
        await flows.pause(checkout.workflow, step="charge")
        handle = await flows.execute(checkout.workflow, 7)
        await _wait_held(flows)
        assert "charge" not in checkout.did
        await flows.resume(checkout.workflow, step="charge")
        assert await handle.result() == 7


async def test_a_signal_and_a_retry_beside_a_held_step_are_not_held_up(make_provider: MakeProvider) -> None:
    go, did = Signal("go", int), list[str]()
    workflow = Workflow[Any, Any]("checkout", retry=QUICK)

    @workflow.step(after=None)
    async def charge(ctx: StepContext[Any]) -> str:
        return "charged"

    approved = workflow.wait(go, after=None, name="approved")

    @workflow.step(after=approved)
    async def flaky(ctx: StepContext[Any]) -> None:
        did.append("flaky")
        if len(did) < 2:
            raise ConnectionError

    @workflow.completed
    async def end(ctx: StepContext[Any]) -> Any:
        return [ctx.result(charge), ctx.result(approved)]

    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, flows.provider.worker():
        await flows.pause(workflow, step="charge")
        handle = await flows.execute(workflow, None)
        await _wait_held(flows)
        await handle.signal(go, 5)
        assert await _states(handle, "approved", "flaky") == ["completed", "completed"]
        await flows.resume(workflow, step="charge")
        assert await handle.result() == ["charged", 5]


async def test_what_has_no_attempts_to_hold_back_is_refused(make_provider: MakeProvider) -> None:
    inner, outer = Workflow[Any, Any]("inner"), Workflow[Any, Any]("outer")
    inner.step(Checkout().reserve)
    outer.flow(inner)
    outer.sleep("1h", name="rest")
    outer.step(Checkout().reserve)

    @durable(name="long")
    async def long(ctx: FlowContext[None]) -> None:
        pass

    async with make_provider() as provider:
        flows = WorkflowProvider(provider)
        flows.register(outer)
        flows.register(long)
        with pytest.raises(
            DefinitionError, match=r"step 'inner' of workflow 'outer' runs workflow 'inner'.*pause that one"
        ):
            await flows.pause(outer, step="inner")
        with pytest.raises(DefinitionError, match=r"step 'rest' of workflow 'outer' only waits"):
            await flows.pause("outer", step="rest")
        with pytest.raises(
            DefinitionError, match=r"'nothing' is no step of workflow 'outer'; its steps are: "
        ):
            await flows.pause("outer", step="nothing")
        with pytest.raises(DefinitionError, match="durable function 'long' has tasks and no steps"):
            await flows.pause(long, step="task")
        with pytest.raises(DefinitionError, match="expected the name of a step"):
            await flows.resume("unknown-here", step="a b")
        with pytest.raises(
            DefinitionError, match=r"step 'reserve' of workflow 'outer' was defined without a limit"
        ):
            await flows.set_limit(outer, Limit(at_once=1), step="reserve")
        with pytest.raises(
            DefinitionError, match=r"has by, each or each_rate, which only the limits of events have"
        ):
            await flows.set_limit(outer, Limit(by=str))
        assert await provider.inspector.queues.controls() == []


async def test_a_step_whose_queue_would_have_too_long_a_name_runs_beside_paused_ones(
    make_provider: MakeProvider,
) -> None:
    checkout, long = Checkout(), Workflow[Any, Any]("w" * 128)
    long.then(step(checkout.notify, name="s" * 128))
    flows = make_flows(make_provider(), checkout)
    flows.register(long)
    async with flows.provider, flows.provider.worker():
        await flows.pause(checkout.workflow, step="charge")
        await (await flows.execute(long, None)).result()
        assert checkout.did == ["notify"]
        with pytest.raises(DefinitionError, match="give workflow and step shorter names"):
            await flows.pause(long, step="s" * 128)
