"""Flows of durable functions in a real server: they sleep, are told, stopped, undone and retried, from any
process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from eventbus import DefinitionError, Event, EventProvider, PayloadError, Retry, SignalRefused, UnknownJob
from workflows import (
    FlowCancelled,
    FlowContext,
    FlowHandle,
    FlowTimeout,
    NonDeterminismError,
    Signal,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)
from workflows.records.entries import read_entries

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Verdict(msgspec.Struct):
    ok: bool


class Refused(Exception):
    pass


class Progress(msgspec.Struct):
    done: int


approval = Signal("approval", Verdict)
asked = Event("asked", payload=int, result=int)
did: list[str] = []
gate = asyncio.Event()
broken: set[str] = set()


def note(what: str) -> str:
    did.append(what)
    if what in broken:
        raise ValueError(f"{what} is broken")
    return what


@task
async def reserve() -> str:
    return note("reserve")


@reserve.rollback
async def release(reservation: str) -> None:
    note(f"release {reservation}")


@task
def charge(total: int) -> int:
    note("charge")
    return total


@charge.rollback(retry=Retry(attempts=2, delay=0))
def refund(total: int) -> None:
    note(f"refund {total}")


@task
async def hold(name: str) -> str:
    note(f"hold {name}")
    await gate.wait()
    return note(f"held {name}")


@task
async def ship() -> str:
    return note("ship")


@task
async def tell(name: str, *, kindly: bool = False) -> None:
    note(f"tell {name}{' kindly' if kindly else ''}")


@durable("order", state=Progress, errors=[Refused], retry=Retry(attempts=1))
async def order(ctx: FlowContext[int]) -> str:
    await ctx.step(reserve)
    ctx.state = Progress(1)
    ctx.rollback(tell, "Ada", kindly=True)
    await ctx.step(charge, ctx.input)
    verdict = await ctx.wait_for(approval)
    ctx.state = Progress(2)
    if not verdict.ok:
        raise Refused("not ok")
    return await ctx.step(ship)


@durable("held", retry=Retry(attempts=1))
async def held(ctx: FlowContext[None]) -> Any:
    await ctx.step(reserve)
    return await ctx.gather(ctx.step(hold, "a"), ctx.step(hold, "b"))


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    global gate
    did.clear()
    broken.clear()
    gate = asyncio.Event()


OpenFlows = Callable[..., Awaitable[WorkflowProvider]]


async def kinds(flows: WorkflowProvider, flow: FlowHandle[Any]) -> list[str]:
    entries = read_entries(flow.id, await flows.provider.jobs.journal(flow.id))
    return [f"{entry.kind} {entry.name or entry.place}" for entry in entries]


async def wait_asleep(flows: WorkflowProvider, flow: FlowHandle[Any]) -> None:
    while (await flows.provider.jobs.look(flow.id, limit=0)).root.get("state") not in (  # noqa: ASYNC110
        "waiting-children",
        "delayed",
    ):
        await asyncio.sleep(0.01)


async def test_a_flow_sleeps_until_a_signal_from_another_process_and_shows_its_state(
    open_flows: OpenFlows,
) -> None:
    flows = await open_flows(order)
    flow = await flows.execute(order, 7, idempotency_key="o-1")
    await wait_asleep(flows, flow)
    assert (await flow.status()).state == "waiting"
    away = await open_flows(worker=False)
    handle = away.handle(flow.id)
    assert await handle.state() == {"done": 1}
    assert await away.handle(flow.id, order).state() == Progress(1)
    with pytest.raises(PayloadError, match="the payload of signal 'approval' failed its validation"):
        await handle.signal(approval, "yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await handle.signal(approval, Verdict(ok=True))
    assert await flow.result(240) == "ship"
    assert await (await flows.execute(order, 7, idempotency_key="o-1")).result(240) == "ship"
    assert await flow.state() == Progress(2)
    assert did == ["reserve", "charge", "ship"]
    assert await kinds(flows, flow) == [
        "step reserve",
        "rollback tell",
        "step charge",
        "wait approval",
        "signal approval",
        "step ship",
    ]
    with pytest.raises(SignalRefused):
        await handle.signal(approval, Verdict(ok=True))
    with pytest.raises(UnknownJob):
        await flows.handle("order~00000000000000000000").signal(approval, Verdict(ok=True))


async def test_a_declared_error_is_raised_as_itself_and_all_is_undone_newest_first(
    open_flows: OpenFlows,
) -> None:
    flows = await open_flows(order)
    flow = await flows.execute(order, 7)
    await flow.signal(approval, Verdict(ok=False))
    with pytest.raises(Refused, match="not ok") as caught:
        await flow.result(240)
    cause = caught.value.__cause__
    assert isinstance(cause, StepError)
    assert (cause.step, cause.rollback) == ("__function__", "complete")
    assert did == ["reserve", "charge", "refund 7", "tell Ada kindly", "release reserve"]
    report = await flow.report()
    assert [entry.step for entry in report.rollbacks] == ["charge@2", "tell@1", "reserve@0"]
    assert (report.state, report.rollback) == ("failed", "complete")


async def test_a_step_that_fails_stops_the_flow_and_a_broken_rollback_is_told(open_flows: OpenFlows) -> None:
    broken.update({"ship", "refund 7"})
    flows = await open_flows(order)
    flow = await flows.execute(order, 7)
    await flow.signal(approval, Verdict(ok=True))
    with pytest.raises(StepError) as caught:
        await flow.result(240)
    error = caught.value
    assert (error.step, error.rollback) == ("ship@4", "incomplete")
    assert [failed.step for failed in error.rollback_errors] == ["charge@2"]
    assert did.count("refund 7") == 2, "its own retry rule"
    assert "step 'ship@4'" in str(error)
    assert did[-2:] == ["tell Ada kindly", "release reserve"]


async def test_a_retry_by_hand_keeps_what_is_recorded_and_was_not_undone(open_flows: OpenFlows) -> None:
    broken.add("ship")
    flows = await open_flows(order)
    flow = await flows.execute(order, 7)
    await flow.signal(approval, Verdict(ok=True))
    with pytest.raises(StepError):
        await flow.result(240)
    broken.clear()
    did.clear()
    again = await flows.retry(flow.id, workflow=order)
    assert await again.result(240) == "ship"
    assert did == ["reserve", "charge", "ship"], "what was undone runs again; the approval counts"
    assert (await again.report()).run == 2
    did.clear()
    fresh = await flows.retry(flow.id, resume=False, workflow=order)
    await fresh.signal(approval, Verdict(ok=True))
    assert await fresh.result(240) == "ship"
    assert did == ["reserve", "charge", "ship"]


@pytest.mark.parametrize("moment", ["asleep", "active", "before"])
async def test_a_cancel_ends_a_flow_in_each_state_and_undoes_what_it_did(
    moment: str, open_flows: OpenFlows, until: Until
) -> None:
    flows = await open_flows(order, held)
    if moment == "before":
        flow: FlowHandle[Any] = await flows.execute(order, 7, delay="1 hour")
    elif moment == "asleep":
        flow = await flows.execute(order, 7)
        await wait_asleep(flows, flow)
    else:
        flow = await flows.execute(held, None)
        await until(lambda: "hold b" in did, "both run")
    assert await flow.cancel("enough")
    with pytest.raises(FlowCancelled, match="enough"):
        await flow.result(240)
    undone = [each for each in did if each.startswith(("refund", "release", "tell"))]
    wanted = {
        "before": [],
        "asleep": ["refund 7", "tell Ada kindly", "release reserve"],
        "active": ["release reserve"],
    }
    assert undone == wanted[moment]
    if moment == "active":
        assert (await kinds(flows, flow))[1:3] == ["cut hold", "cut hold"]


async def test_a_flow_past_its_timeout_is_undone(open_flows: OpenFlows) -> None:
    flows = await open_flows(order, lease=0.5)
    flow = await flows.execute(order, 7, timeout=0.2)
    with pytest.raises(FlowTimeout):
        await flow.result(240)
    assert did[-1] == "release reserve"


async def test_a_flow_whose_worker_stops_goes_on_in_another_and_repeats_only_what_ran(
    make_provider: MakeProvider, open_flows: OpenFlows, until: Until
) -> None:
    first = make_provider(grace=0)
    flows = WorkflowProvider(first)
    flows.register(held)
    async with first:
        async with first.worker():
            flow = await flows.execute(held, None)
            await until(lambda: "hold b" in did, "both run")
        assert did == ["reserve", "hold a", "hold b"]
    gate.set()
    other = await open_flows(held)
    assert await other.handle(flow.id, held).result(240) == ["held a", "held b"]
    assert sorted(did[3:]) == ["held a", "held b", "hold a", "hold b"]


async def test_a_flow_that_cannot_be_replayed_is_parked_and_goes_on_with_the_code_that_can(
    make_provider: MakeProvider, open_flows: OpenFlows, until: Until
) -> None:
    @durable("order", retry=Retry(attempts=1))
    async def changed(ctx: FlowContext[int]) -> str:
        return await ctx.step(ship)

    first = make_provider()
    flows = WorkflowProvider(first)
    flows.register(order)
    async with first:
        async with first.worker():
            flow = await flows.execute(order, 7)
            await wait_asleep(flows, flow)
        await flow.signal(approval, Verdict(ok=True))
    second = make_provider()
    wrong = WorkflowProvider(second)
    wrong.register(changed)
    async with second, second.worker():
        while (await second.jobs.look(flow.id, limit=0)).root.get("state") != "parked":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await wrong.status(flow.id)).state == "waiting"
        (summary,), report = await wrong.flows("order"), await wrong.report(flow.id)
        assert summary.is_parked
        assert report.is_parked
        assert summary.error == report.error == "at 0: recorded step 'reserve', code has step 'ship'"
    assert did == ["reserve", "charge"], "nothing new began"
    right = await open_flows(order)
    assert await right.handle(flow.id, order).result(240) == "ship"
    assert did == ["reserve", "charge", "ship"]


async def test_a_signal_that_the_function_does_not_declare_is_refused_to_its_sender(
    open_flows: OpenFlows,
) -> None:
    @durable("declares", signals=[approval])
    async def declares(ctx: FlowContext[None]) -> bool:
        return (await ctx.wait_for(approval)).ok

    flows = await open_flows(declares)
    flow = await flows.execute(declares, None)
    with pytest.raises(DefinitionError, match="declares no signal 'aproval'"):
        await flow.signal(Signal("aproval", bool), True)
    with pytest.raises(PayloadError):
        await flow.signal(Signal("approval", str), "yes")
    await flow.signal(approval, Verdict(ok=True))
    assert await flow.result(240) is True


async def test_a_version_that_no_worker_knows_waits_for_one_that_does(open_flows: OpenFlows) -> None:
    @durable("order", version="2")
    async def newer(ctx: FlowContext[int]) -> str:
        return await ctx.step(ship)

    caller = await open_flows(newer, worker=False)
    flow = await caller.execute(newer, 7)
    await open_flows(order)
    await asyncio.sleep(0.05)
    assert did == []
    await open_flows(order, newer)
    assert await flow.result(240) == "ship"


async def test_one_name_is_a_workflow_or_a_durable_function(open_flows: OpenFlows) -> None:
    flows = await open_flows(order, worker=False)
    with pytest.raises(DefinitionError, match="rename one of them"):
        flows.register(Workflow("order"))
    with pytest.raises(DefinitionError, match="registered in version '1' already"):
        flows.register(durable("order")(held.function))
    with pytest.raises(DefinitionError, match="is not registered here"):
        await flows.execute(held, None)
    assert issubclass(NonDeterminismError, Exception)
