"""Slots of local steps: never more than there are, in turns between flows, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from eventbus.lowlevel import Places
from workflows.execution.slots import FlowSlots

pytestmark = pytest.mark.virtual


async def _begin(slots: FlowSlots) -> asyncio.Task[None]:
    task = asyncio.create_task(slots.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_no_more_are_taken_than_there_are() -> None:
    flow = FlowSlots(Places(2))
    assert [flow.enter() for _ in range(3)] == [True, True, False]
    flow.leave()
    assert [flow.enter() for _ in range(2)] == [True, False]


async def test_who_waits_is_given_the_next_one_before_anybody_else() -> None:
    slots = Places(1)
    first, second = FlowSlots(slots), FlowSlots(slots)
    assert first.enter()
    waiting = await _begin(second)
    first.leave()
    assert not first.enter()
    await waiting


async def test_a_flow_with_many_steps_takes_turns_with_the_others() -> None:
    slots, order = Places(1), list[str]()
    wide, narrow = FlowSlots(slots), FlowSlots(slots)

    async def step(flow: FlowSlots, name: str) -> None:
        await flow.wait()
        order.append(name)
        flow.leave()

    assert wide.enter()
    tasks = [asyncio.create_task(step(wide, "wide")) for _ in range(50)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(step(narrow, "narrow")))
    await asyncio.sleep(0)
    wide.leave()
    await asyncio.gather(*tasks)
    assert order.index("narrow") <= 2
    assert len(order) == 51


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_cancelled_request_takes_no_slot(*, is_given: bool) -> None:
    slots = Places(1)
    flow = FlowSlots(slots)
    assert flow.enter()
    waiting = await _begin(flow)
    if is_given:  # the slot comes in the same moment
        flow.leave()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if not is_given:
        flow.leave()
    assert flow.enter()
    assert not flow.enter()
