"""Retries by hand of durable functions, and open flows that meet another release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eventbus import EventProvider, HandlerError, Retry, SignalRefused
from workflows import (
    FlowCancelled,
    FlowContext,
    FlowHandle,
    Signal,
    StepError,
    WorkflowProvider,
    durable,
    task,
)
from workflows.records.entries import read_entries
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

did: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()
    broken.clear()


@task(retry=Retry(attempts=1))
async def act(name: str) -> str:
    did.append(name)
    if name in broken:
        raise ValueError(name)
    return name


@durable("caught", retry=Retry(attempts=1))
async def caught(ctx: FlowContext[None]) -> str:
    try:
        await ctx.step(act, "bad")
    except HandlerError:
        await ctx.step(act, "noted")
    await ctx.sleep("100ms")
    return await ctx.step(act, "last")


@durable("reraised", retry=Retry(attempts=1))
async def reraised(ctx: FlowContext[None]) -> str:
    await ctx.step(act, "first")
    try:
        return await ctx.step(act, "pay")
    except HandlerError:
        await ctx.step(act, "noted")
        raise


async def test_a_retry_from_the_start_does_each_thing_once(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(caught)
    broken.add("bad")
    async with provider, provider.worker():
        flow = await flows.execute(caught, None)
        await flow.result()
        did.clear()
        await (await flows.retry(flow.id, resume=False)).result()
        entries = read_entries(flow.id, await provider.jobs.journal(flow.id))
    assert did == ["bad", "noted", "last"]
    assert [entry.kind for entry in entries].count("run") == 1


async def test_what_was_recorded_behind_the_error_that_ended_a_flow_is_forgotten_by_its_retry(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(reraised)
    broken.add("pay")
    async with provider, provider.worker():
        flow = await flows.execute(reraised, None)
        with pytest.raises(StepError):
            await flow.result()
        assert did == ["first", "pay", "noted"]
        with pytest.raises(StepError):
            await (await flows.retry(flow.id)).result()
        assert did == ["first", "pay", "noted", "pay", "noted"]
        broken.clear()
        assert await (await flows.retry(flow.id)).result() == "pay"
    assert did[5:] == ["pay"]


class Old(msgspec.Struct):
    name: str


class New(msgspec.Struct):
    name: str
    must: int


async def test_a_flow_whose_input_does_not_fit_a_later_release_is_parked_and_not_undone(
    make_provider: MakeProvider,
) -> None:
    @durable("typed")
    async def old(ctx: FlowContext[Old]) -> str:
        await ctx.sleep("1h")
        return await ctx.step(act, ctx.input.name)

    @durable("typed")
    async def new(ctx: FlowContext[New]) -> str:
        raise AssertionError

    before, after = make_provider(), make_provider()
    first, second = WorkflowProvider(before), WorkflowProvider(after)
    first.register(old)
    second.register(new)
    async with before, after, after.worker():
        flow = await first.execute(old, Old("ann"))
        async with asyncio.timeout(240):
            while (await before.inspector.jobs.get(flow.id)).state != "parked":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        report = await flow.report()
        assert report.error.startswith(f"the input of flow {flow.id[:20]}")
        assert (report.state, report.rollbacks) == ("waiting", [])


go = Signal("go", str)


@task
async def owe(name: str) -> str:
    did.append(name)
    return name


@owe.rollback
async def undo(name: str) -> None:
    did.append(f"undo {name}")


@durable("waits")
async def waits(ctx: FlowContext[float]) -> list[str]:
    first = await ctx.step(owe, "first")
    word = await ctx.wait_for(go, timeout=ctx.input)
    return [first, word, await ctx.step(act, "last")]


async def _states(flow: FlowHandle[Any]) -> list[tuple[str, str]]:
    return [(step.step, step.state) for step in (await flow.report()).steps.values()]


async def _wait_states(flow: FlowHandle[Any], states: list[tuple[str, str]]) -> None:
    async with asyncio.timeout(240):
        while await _states(flow) != states:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_flow_that_ended_while_it_waited_waits_again_after_a_retry(
    make_provider: MakeProvider, how: str
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(waits)
    async with provider, provider.worker():
        flow = await flows.execute(waits, 0.05 if how == "timeout" else 60)
        if how == "cancel":
            await _wait_states(flow, [("owe@0", "completed"), ("go@1", "waiting")])
            await flow.cancel()
        with pytest.raises((StepError, FlowCancelled)):
            await flow.result(240)
        assert did == ["first", "undo first"]
        state = "failed" if how == "timeout" else "cancelled"
        assert await _states(flow) == [("owe@0", "completed"), ("go@1", state)]
        again = await flows.retry(flow.id, workflow=waits)
        if how == "timeout":  # the time of the new wait is its own: it passes once more
            with pytest.raises(StepError):
                await again.result(240)
            assert did == ["first", "undo first"] * 2
            return
        await _wait_states(again, [("owe@0", "completed"), ("go@1", "waiting")])
        await again.signal(go, "yes")
        assert await again.result(240) == ["first", "yes", "last"]
        assert did == ["first", "undo first", "first", "last"]
        report = await again.report()
        assert (report.state, report.run) == ("completed", 2)
        assert {step.state for step in report.steps.values()} == {"completed"}


async def test_a_retry_counts_the_signal_that_a_wait_took_and_keeps_the_one_that_none_took(
    make_provider: MakeProvider,
) -> None:
    @durable("twice")
    async def twice(ctx: FlowContext[None]) -> list[str]:
        first = await ctx.wait_for(go)
        await ctx.step(act, "pay")
        return [first, await ctx.wait_for(go)]

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(twice)
    broken.add("pay")
    async with provider, provider.worker():
        flow = await flows.execute(twice, None)
        await flow.signal(go, "one")
        await flow.signal(go, "two")
        with pytest.raises(StepError):
            await flow.result(240)
        with pytest.raises(SignalRefused):
            await flow.signal(go, "late")
        broken.clear()
        again = await flows.retry(flow.id, workflow=twice)
        assert await again.result(240) == ["one", "two"]
        assert did == ["pay", "pay"]


async def test_the_caller_gets_a_declared_timeout_of_a_wait_as_that_of_an_attempt() -> None:
    never: Signal[bool] = Signal("never", bool)

    @durable("waits-in-vain", errors=[TimeoutError], output=bool)
    async def waits_in_vain(ctx: FlowContext[None]) -> bool:
        return await ctx.wait_for(never, timeout=0.01)

    with pytest.raises(TimeoutError, match="signal 'never' did not come in time"):
        await run_inline(waits_in_vain, None)
