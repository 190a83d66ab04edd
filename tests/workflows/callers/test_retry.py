"""Retry by hand: a flow that has ended runs once more under its id, and repeats only what was undone or not
done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, Retry, StoreUnavailable, UnknownJob, UsageError
from eventbus.store.calls.tree_store import TreeStore
from workflows import (
    FlowCancelled,
    FlowHandle,
    FlowNotEnded,
    FlowTimeout,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

_ONCE = Retry(attempts=1)


class Shop:
    """A workflow of three steps, a record of what it did, and the faults that it must make."""

    def __init__(self, name: str = "shop", *, spread: bool = False) -> None:
        self.did: list[str] = []
        self.broken: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.workflow = Workflow[Any, Any](name, retry=_ONCE, spread=spread)
        reserve = self.workflow.step(self.reserve)
        reserve.rollback(self.release)
        self.workflow.step(self.mail)
        self.workflow.step(self.ship)
        self.workflow.completed(self.receipt)

    def note(self, what: str) -> None:
        self.did.append(what)
        if what in self.broken:
            raise ValueError(f"{what} is broken")

    async def reserve(self, ctx: StepContext[Any]) -> str:
        self.note("reserve")
        return f"reserved in run {ctx.run}"

    async def release(self, ctx: StepContext[Any], reservation: str) -> None:
        self.note(f"release what was {reservation}")

    async def mail(self, ctx: StepContext[Any]) -> str:
        self.note("mail")
        return f"mailed in run {ctx.run}"

    async def ship(self, ctx: StepContext[Any]) -> str:
        await self.gate.wait()
        self.note("ship")
        return f"{ctx.result('reserve')}, {ctx.result('mail')}, shipped in run {ctx.run}"

    async def receipt(self, ctx: StepContext[Any]) -> str:
        self.note("receipt")
        return ctx.result("ship")


@pytest.fixture(params=[False, True], ids=["local", "spread"])
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop(spread=request.param)


@pytest.fixture
async def flows(shop: Shop, make_provider: MakeProvider) -> AsyncIterator[WorkflowProvider]:
    """A provider with a worker that runs the shop's flows."""
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(shop.workflow)
    async with provider, provider.worker():
        yield flows


async def _fail(flows: WorkflowProvider, shop: Shop, *what: str, **options: Any) -> FlowHandle[Any]:
    """Run a flow in which these steps fail; then repair them, and clear the record of what was done."""
    shop.broken = set(what)
    handle = await flows.execute(shop.workflow, None, **options)
    with pytest.raises(StepError):
        await handle.result()
    shop.broken = set()
    shop.did.clear()
    return handle


async def test_a_failed_flow_repeats_what_was_undone_or_not_done_and_nothing_else(
    flows: WorkflowProvider, shop: Shop
) -> None:
    failed = await _fail(flows, shop, "ship")
    again = await flows.retry(failed.id)
    assert again.id == failed.id
    assert await again.result() == "reserved in run 2, mailed in run 1, shipped in run 2"
    assert shop.did == ["reserve", "ship", "receipt"]
    report = await again.report()
    assert (report.state, report.run, report.error, report.rollbacks) == ("completed", 2, "", [])
    assert report.order == ["mail", "reserve", "ship"]
    (summary,) = await flows.flows("shop")
    assert (summary.state, summary.run, summary.completed) == ("completed", 2, 3)


async def test_a_completed_flow_runs_from_the_start(flows: WorkflowProvider, shop: Shop) -> None:
    handle = await flows.execute(shop.workflow, None)
    await handle.result()
    again = await flows.retry(handle.id)
    assert await again.result() == "reserved in run 2, mailed in run 2, shipped in run 2"
    assert shop.did == ["reserve", "mail", "ship", "receipt"] * 2


async def test_both_can_be_forced_the_other_way(flows: WorkflowProvider, shop: Shop) -> None:
    failed = await _fail(flows, shop, "ship")
    again = await flows.retry(failed.id, resume=False)
    assert await again.result() == "reserved in run 2, mailed in run 2, shipped in run 2"
    shop.did.clear()
    again = await flows.retry(failed.id, resume=True)
    assert await again.result() == "reserved in run 2, mailed in run 2, shipped in run 2"
    assert shop.did == ["receipt"]


async def test_what_an_earlier_run_kept_is_kept_on(flows: WorkflowProvider, shop: Shop) -> None:
    handle = await _fail(flows, shop, "ship")
    shop.broken = {"receipt"}
    again = await flows.retry(handle.id)
    with pytest.raises(StepError, match="receipt is broken"):
        await again.result()
    assert shop.did[-1] == "release what was reserved in run 2"
    shop.broken, shop.did = set(), []
    again = await flows.retry(handle.id)
    assert await again.result() == "reserved in run 2, mailed in run 1, shipped in run 2"
    assert shop.did == ["reserve", "receipt"]  # shipping has no rollback, so its effect stays


async def test_a_step_whose_rollback_failed_stands_and_is_not_done_twice(
    flows: WorkflowProvider, shop: Shop
) -> None:
    undoing = "release what was reserved in run 1"
    handle = await _fail(flows, shop, "ship", undoing)
    shop.broken = {"ship"}
    again = await flows.retry(handle.id)
    with pytest.raises(StepError) as caught:
        await again.result()
    assert shop.did == ["ship", undoing]  # not reserved again; and now it is undone
    assert caught.value.rollback == "complete"


async def test_a_cancelled_flow_is_resumed(flows: WorkflowProvider, shop: Shop, until: Until) -> None:
    shop.gate.clear()
    handle = await flows.execute(shop.workflow, None)
    await until(lambda: "mail" in shop.did, "the last step is next")
    with pytest.raises(FlowNotEnded, match=r"is running; only a flow that has ended"):
        await flows.retry(handle.id)
    await handle.cancel("not today")
    with pytest.raises(FlowCancelled, match="not today"):
        await handle.result()
    shop.gate.set()
    shop.did.clear()
    again = await flows.retry(handle.id)
    assert await again.result() == "reserved in run 2, mailed in run 1, shipped in run 2"


async def test_of_five_who_retry_at_once_one_does(flows: WorkflowProvider, shop: Shop) -> None:
    handle = await _fail(flows, shop, "ship")
    answers = await asyncio.gather(*(flows.retry(handle.id) for _ in range(5)), return_exceptions=True)
    begun = [each for each in answers if isinstance(each, FlowHandle)]
    assert len(begun) == 1
    assert [type(each) for each in answers if each is not begun[0]] == [FlowNotEnded] * 4
    await begun[0].result()
    assert shop.did == ["reserve", "ship", "receipt"]


async def test_what_is_no_flow_is_refused(flows: WorkflowProvider) -> None:
    with pytest.raises(UnknownJob):
        await flows.retry("shop~00000000000000000000")
    with pytest.raises(UnknownJob, match="'shop' is no id of a flow; expected the id of a flow"):
        await flows.retry("shop")
    with pytest.raises(DefinitionError, match="expected the id of a flow"):
        await flows.retry(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"is a part of flow shop~0{20}, whose step 'pay' started it"):
        await flows.retry("shop~00000000000000000000/1/pay/0/payment~0")


async def test_who_waited_heard_the_first_outcome_and_who_asks_now_the_second(
    flows: WorkflowProvider, shop: Shop
) -> None:
    first = await _fail(flows, shop, "ship")
    shop.gate.clear()
    await flows.retry(first.id)
    waiting = asyncio.create_task(flows.handle(first.id).result())
    shop.gate.set()
    assert await waiting == "reserved in run 2, mailed in run 1, shipped in run 2"
    with pytest.raises(StepError):
        await first.result()


async def test_its_key_stands_for_the_new_run(flows: WorkflowProvider, shop: Shop) -> None:
    failed = await _fail(flows, shop, "ship", idempotency_key="order 1")
    shop.gate.clear()
    await flows.retry(failed.id)
    joined = await flows.execute(shop.workflow, None, idempotency_key="order 1")
    shop.gate.set()
    assert joined.id == failed.id
    assert (await joined.result()).endswith("shipped in run 2")


async def test_its_time_counts_anew(shop: Shop, make_provider: MakeProvider) -> None:
    provider = make_provider(lease="0.5s")
    flows = WorkflowProvider(provider)
    flows.register(shop.workflow)
    async with provider, provider.worker():
        handle = await _fail(flows, shop, "ship", timeout="0.2s")
        shop.gate.clear()
        again = await flows.retry(handle.id)
        with pytest.raises(FlowTimeout):
            await again.result()
    assert shop.did == ["reserve", "release what was reserved in run 2"]


async def test_who_retries_needs_no_definition_and_may_die_after_it(
    flows: WorkflowProvider, shop: Shop, make_provider: MakeProvider
) -> None:
    # The crash window `asker-dies`, after the call.
    handle = await _fail(flows, shop, "ship")
    async with make_provider() as other:
        await WorkflowProvider(other).retry(handle.id)
    assert (await flows.handle(handle.id).result()).endswith("shipped in run 2")


async def test_an_answer_that_was_lost_is_asked_for_again(
    flows: WorkflowProvider, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The crash window `not-answered`: the caller repeats the call with the same arguments.
    handle = await _fail(flows, shop, "ship")
    send = TreeStore.restart
    calls: list[str] = []

    async def twice(self: TreeStore, root: str, **given: Any) -> str:
        calls.append(await send(self, root, **given))
        calls.append(await send(self, root, **given))
        return calls[-1]

    monkeypatch.setattr(TreeStore, "restart", twice)
    again = await flows.retry(handle.id)
    assert calls == ["restarted", "restarted"]
    await again.result()
    assert shop.did == ["reserve", "ship", "receipt"]


async def test_a_flow_in_a_version_that_nobody_runs_here_waits_for_it(make_provider: MakeProvider) -> None:
    other = Shop("versions")
    async with make_provider() as old:
        first = WorkflowProvider(old)
        first.register(other.workflow)
        async with old.worker():
            handle = await _fail(first, other, "ship")
    newer = Workflow[Any, Any]("versions", retry=_ONCE)
    newer.step(other.reserve)
    later = WorkflowProvider(new := make_provider())
    later.register(newer)
    async with new, new.worker():
        await later.retry(handle.id)
        while (await new.inspector.jobs.get(handle.id)).state != "parked":  # noqa: ASYNC110  (of the server)
            await asyncio.sleep(0.002)
    assert other.did == []
    async with make_provider() as old:
        first = WorkflowProvider(old)
        first.register(other.workflow)
        async with old.worker():
            assert (await first.handle(handle.id).result()).endswith("shipped in run 2")


class _Died(Exception):
    """In the place of a worker's death between two calls."""


async def test_a_worker_that_dies_while_it_adds_the_steps_leaves_them_to_the_next(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The crash window `worker-dies-adding-steps`: 300 steps take several calls.
    provider = make_provider()
    flows = WorkflowProvider(provider)
    wide = Workflow[Any, Any]("wide", retry=Retry(attempts=2, delay=0.01), spread=True)
    did: list[str] = []

    async def work(ctx: StepContext[Any]) -> None:
        did.append(ctx.step)

    for number in range(300):
        wide.step(work, name=f"s{number}", after=None)
    flows.register(wide)
    send = TreeStore.checkpoint
    calls: list[int] = []

    async def die_once(self: TreeStore, job: str, token: str, **given: Any) -> str:
        calls.append(len(given.get("rows", ())))
        if len(calls) == 2:
            raise _Died
        return await send(self, job, token, **given)

    async with provider, provider.worker():
        handle = await flows.execute(wide, None)
        await handle.result()
        did.clear()
        monkeypatch.setattr(TreeStore, "checkpoint", die_once)
        await (await flows.retry(handle.id)).result()
    assert sorted(did) == sorted(wide.steps)
    assert sum(calls[2:]) == 300  # all again: those that are there are none twice


async def test_a_retry_while_the_server_is_away_says_so(
    flows: WorkflowProvider, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The crash window `asker-dies`, before the call: nothing happened.
    handle = await _fail(flows, shop, "ship")

    async def refuse(self: TreeStore, root: str, **given: Any) -> str:
        raise StoreUnavailable("no server at here", sent=False)

    monkeypatch.setattr(TreeStore, "restart", refuse)
    with pytest.raises(StoreUnavailable):
        await flows.retry(handle.id)
    assert (await handle.status()).state == "failed"
