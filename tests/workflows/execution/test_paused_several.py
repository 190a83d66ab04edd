"""Several paused steps at once: of one flow, of a flow and its sub-workflow, and in processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
from drivers.virtual import VirtualWorld
from importable import process_steps

from eventbus import EventProvider, StoreError
from workflows import StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

both = pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])


async def _wait_held(flows: WorkflowProvider, *queues: str) -> None:
    """Wait until an attempt of each of these steps waits for its resume."""
    async with asyncio.timeout(240):
        for queue in queues:
            while (await flows.provider.inspector.queues.controls(queue))[0].waiting != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def _make_shop(did: list[str], *, spread: bool) -> Workflow[Any, Any]:
    shop = Workflow[Any, Any]("shop", spread=spread)

    @shop.step()
    async def reserve(ctx: StepContext[Any]) -> None:
        did.append("reserve")

    @shop.step(after="reserve")
    async def charge(ctx: StepContext[Any]) -> None:
        did.append("charge")

    @shop.step(after="reserve")
    async def pack(ctx: StepContext[Any]) -> None:
        did.append("pack")

    @shop.step(after=["charge", "pack"])
    async def ship(ctx: StepContext[Any]) -> None:
        did.append("ship")

    return shop


def _open_shop(
    make_provider: MakeProvider, *, spread: bool
) -> tuple[WorkflowProvider, Workflow[Any, Any], list[str]]:
    """Return a provider with the workflow, the workflow, and the list of what its steps did."""
    did: list[str] = []
    shop = _make_shop(did, spread=spread)
    flows = WorkflowProvider(make_provider())
    flows.register(shop)
    return flows, shop, did


@both
async def test_two_steps_of_a_flow_wait_each_for_its_own_resume(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    flows, shop, did = _open_shop(make_provider, spread=spread)
    async with flows.provider:
        await flows.pause(shop, step="charge")
        await flows.pause(shop, step="pack")
        async with flows.provider.worker():
            handle = await flows.execute(shop, 1)
            await _wait_held(flows, "workflow.shop.steps/charge", "workflow.shop.steps/pack")
            assert did == ["reserve"]
            await flows.resume(shop, step="pack")
            async with asyncio.timeout(240):
                while did != ["reserve", "pack"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await _wait_held(flows, "workflow.shop.steps/charge")
            await flows.resume(shop, step="charge")
            await handle.result(timeout=240)
            assert did == ["reserve", "pack", "charge", "ship"]
            assert await flows.provider.inspector.queues.controls() == []


@both
async def test_a_resumed_step_is_not_handed_to_and_fro(
    make_provider: MakeProvider, virtual: VirtualWorld, *, spread: bool
) -> None:
    flows, shop, _ = _open_shop(make_provider, spread=spread)
    async with flows.provider:
        await flows.pause(shop, step="charge")
        async with flows.provider.worker():
            handle = await flows.execute(shop, 1)
            await _wait_held(flows, "workflow.shop.steps/charge")
            before = virtual.network.calls
            await flows.resume(shop, step="charge")
            await handle.result(timeout=240)
            assert virtual.network.calls - before < 60


@both
async def test_an_inner_step_of_a_sub_workflow_waits_and_the_flow_around_it_with_it(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    did: list[str] = []
    shop = _make_shop(did, spread=spread)
    order = Workflow[Any, Any]("order", spread=spread)
    order.flow(shop, name="buy")

    @order.step(after="buy")
    async def thank(ctx: StepContext[Any]) -> None:
        did.append("thank")

    flows = WorkflowProvider(make_provider())
    flows.register(order)
    async with flows.provider:
        await flows.pause(shop, step="charge")
        async with flows.provider.worker():
            handle = await flows.execute(order, 1)
            await _wait_held(flows, "workflow.shop.steps/charge")
            async with asyncio.timeout(240):
                while "pack" not in did:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert sorted(did) == ["pack", "reserve"]
        async with flows.provider.worker():  # another worker finds it paused, too
            await flows.resume(shop, step="charge")
            await handle.result(timeout=240)
            assert did[-3:] == ["charge", "ship", "thank"]
            assert sorted(did) == ["charge", "pack", "reserve", "ship", "thank"]
            assert await flows.provider.inspector.queues.controls() == []


@pytest.mark.real  # a process
async def test_a_step_that_runs_in_a_process_waits_and_then_runs_there(make_provider: MakeProvider) -> None:
    flows = WorkflowProvider(make_provider())
    flows.register(process_steps.pictures)
    async with flows.provider:
        await flows.pause(process_steps.pictures, step="cut")
        async with flows.provider.worker():
            handle = await flows.execute(process_steps.pictures, process_steps.Picture("tree"))
            await _wait_held(flows, "workflow.pictures.steps/cut")
            await flows.resume(process_steps.pictures, step="cut")
            cut = await handle.result(timeout=240)
        assert (cut.name, cut.size, cut.facts["attempt"]) == ("tree", 200, 1)
        assert cut.pid != os.getpid()


@both
async def test_somebody_elses_value_in_the_place_of_the_orders_is_told_and_lets_the_step_run(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    did: list[str] = []
    shop = _make_shop(did, spread=spread)
    flows = WorkflowProvider(make_provider())
    flows.register(shop)
    async with flows.provider as provider:
        store = provider._life.running("test").store  # pyright: ignore[reportPrivateUsage]
        await store._caller.command("SET", store.keys.of("limits", "workflow.shop.steps/charge"), "?")
        with pytest.raises(StoreError):
            await flows.pause(shop, step="charge")
        async with provider.worker():
            await (await flows.execute(shop, 1)).result(timeout=240)
        assert did[-1] == "ship"
