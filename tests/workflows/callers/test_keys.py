"""Idempotency keys of flows: one flow for many callers, and what follows when it failed or is superseded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from eventbus.store.calls.tree_store import Chunk, TreeStore, TreeVerdict
from workflows import FlowCancelled, StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Till:
    """A workflow that charges and then ships, a record of what it did, and whether shipping fails."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.is_broken = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.workflow = Workflow[int, int]("till", input=int, output=int, retry=Retry(attempts=1))
        charge = self.workflow.step(self.charge)
        charge.rollback(self.refund)
        self.workflow.step(self.ship)
        self.workflow.completed(self.receipt)

    async def charge(self, ctx: StepContext[int]) -> int:
        self.did.append(f"charge {ctx.input}")
        return ctx.input

    async def refund(self, ctx: StepContext[int], charged: int) -> None:
        self.did.append(f"refund {charged}")

    async def ship(self, ctx: StepContext[int]) -> None:
        self.did.append(f"ship {ctx.input}")
        await self.gate.wait()
        if self.is_broken:
            raise ValueError("no lorry")

    async def receipt(self, ctx: StepContext[int]) -> int:
        return ctx.result("charge")


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.fixture
async def flows(till: Till, make_provider: MakeProvider) -> AsyncIterator[WorkflowProvider]:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(till.workflow)
    async with provider, provider.worker():
        yield flows


async def test_a_hundred_callers_have_one_flow_and_its_output(flows: WorkflowProvider, till: Till) -> None:
    handles = await asyncio.gather(
        *(flows.execute(till.workflow, 5, idempotency_key="k") for _ in range(100))
    )
    assert len({each.id for each in handles}) == 1
    assert await asyncio.gather(*(each.result() for each in handles)) == [5] * 100
    assert till.did == ["charge 5", "ship 5"]


async def test_another_input_under_the_key_meets_the_first_one_with_a_warning(
    flows: WorkflowProvider, till: Till, logs: list[MutableMapping[str, Any]]
) -> None:
    first = await flows.execute(till.workflow, 5, idempotency_key="k")
    await first.result()
    second = await flows.execute(till.workflow, 6, idempotency_key="k")
    assert (second.id, await second.result()) == (first.id, 5)
    assert [each["job_id"] for each in logs if "another payload" in each["event"]] == [first.id]


async def test_after_a_failure_the_key_starts_anew_unless_the_failure_is_asked_for(
    flows: WorkflowProvider, till: Till
) -> None:
    till.is_broken = True
    failed = await flows.execute(till.workflow, 5, idempotency_key="k")
    with pytest.raises(StepError):
        await failed.result()
    till.is_broken = False
    told = await flows.execute(till.workflow, 5, idempotency_key="k", reuse_failure=True)
    assert told.id == failed.id
    with pytest.raises(StepError, match="no lorry") as caught:
        await told.result()
    assert (caught.value.step, caught.value.rollback) == ("ship", "complete")
    anew = await flows.execute(till.workflow, 5, idempotency_key="k")
    assert anew.id != failed.id
    assert await anew.result() == 5
    assert till.did == ["charge 5", "ship 5", "refund 5", "charge 5", "ship 5"]


async def test_who_supersedes_an_open_flow_has_it_cancelled_and_undone(
    flows: WorkflowProvider, till: Till, until: Until
) -> None:
    till.gate.clear()
    first, beside = [await flows.execute(till.workflow, 5, idempotency_key="k") for _ in range(2)]
    await until(lambda: "ship 5" in till.did, "it ships")
    second = await flows.execute(till.workflow, 6, idempotency_key="k", supersede=True)
    for each in (first, beside):
        with pytest.raises(FlowCancelled, match=f"superseded by job {second.id}") as caught:
            await each.result()
        assert caught.value.rollback == "complete"
    till.gate.set()
    assert await second.result() == 6
    assert (await flows.execute(till.workflow, 6, idempotency_key="k")).id == second.id
    assert [each for each in till.did if each.endswith("5")] == ["charge 5", "ship 5", "refund 5"]


def _wide(ran: list[int]) -> Workflow[int, None]:
    """A workflow of so many steps that it is added in several calls."""
    workflow = Workflow[int, None]("wide", input=int, output=None, spread=True)

    def add(number: int) -> None:
        async def step(ctx: StepContext[int]) -> None:
            ran.append(number)

        workflow.step(step, name=f"step{number}", after=[])

    for number in range(250):
        add(number)
    return workflow


async def test_a_flow_whose_adder_died_half_way_is_added_by_the_next_caller_of_its_key(
    make_provider: MakeProvider, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    providers = [make_provider(), make_provider(name="other")]  # another name: they share no connection
    flows = [WorkflowProvider(each) for each in providers]
    wide = _wide(ran)
    for each in flows:
        each.register(wide)
    sent: list[str] = []
    wakes, add = asyncio.Event(), TreeStore.add

    async def stall(
        self: TreeStore, emitter: str, chunks: Sequence[Chunk], **given: Any
    ) -> list[TreeVerdict]:
        if sent[:1] == [emitter]:
            await wakes.wait()  # it has died, as far as others can see
        sent.append(emitter)
        return await add(self, emitter, chunks, **given)

    monkeypatch.setattr(TreeStore, "add", stall)
    async with providers[0], providers[1], providers[1].worker():
        first = asyncio.create_task(flows[0].execute(wide, 1, idempotency_key="k"))
        await until(lambda: sent, "the first call of the first caller")
        handle = await flows[1].execute(wide, 1, idempotency_key="k")
        assert await handle.result(timeout=240) is None
        wakes.set()
        assert (await first).id == handle.id, "it lived, and hears of the other one"
    assert sorted(ran) == list(range(250))
