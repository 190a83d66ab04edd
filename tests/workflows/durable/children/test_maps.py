"""Maps of a durable function: one call of a task for each item, as jobs or in its worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from drivers.fleet import Fleet
from drivers.recorded import RecordedFlow

from eventbus import DefinitionError, PayloadError, Retry
from eventbus.lowlevel import Outcome
from workflows import FlowCancelled, FlowContext, StepError, WorkflowProvider, durable, step_key, task
from workflows.client.reports.durable_report import report_durable
from workflows.execution.surroundings import Child
from workflows.functions.endings import Asleep, Completed, Diverged
from workflows.functions.rollbacks import doubts_in
from workflows.records.entries import Entry
from workflows.records.records import FlowMessage
from workflows.records.report import FlowStatus
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

OpenFlows = Callable[..., Awaitable[WorkflowProvider]]
Until = Callable[..., Awaitable[None]]

did: list[Any] = []
active: Counter[str] = Counter()
gate = asyncio.Event()


class Page(msgspec.Struct, frozen=True):
    number: int


class Odd(Exception):
    pass


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    global gate
    did.clear()
    active.clear()
    gate = asyncio.Event()


@task(retry=Retry(attempts=2, delay=0))
async def analyse(page: Page) -> int:
    active["now"] += 1
    active["most"] = max(active["most"], active["now"])
    try:
        await asyncio.sleep(0.001)
        did.append((page.number, step_key().partition("/")[2]))
        if page.number < 0:
            raise Odd(page.number)
        return page.number * 10
    finally:
        active["now"] -= 1


@analyse.rollback
async def forget(result: int) -> None:
    did.append(f"forget {result}")


@task
def plain(number: int) -> int:
    return number + 1


@task
async def hold(number: int) -> int:
    did.append(number)
    await gate.wait()
    return number


@durable("mapped", errors=[Odd])
async def mapped(ctx: FlowContext[list[int]]) -> list[int]:
    pages = [Page(number) for number in ctx.input]
    return await ctx.map(analyse, pages, limit=3)


@durable("local", errors=[Odd])
async def local(ctx: FlowContext[list[int]]) -> list[int]:
    pages = [Page(number) for number in ctx.input]
    return await ctx.map(analyse, pages, limit=3, local=True)


@pytest.mark.parametrize("function", [mapped, local])
async def test_each_item_is_called_once_and_so_many_at_a_time(open_flows: OpenFlows, function: Any) -> None:
    flows = await open_flows(function)
    flow = await flows.execute(function, list(range(8)))
    assert await flow.result(240) == [number * 10 for number in range(8)]
    assert active["most"] <= 3
    assert sorted(did) == [(number, f"1/0.{number}") for number in range(8)]
    report = await flow.report()
    assert [step.state for step in report.steps.values()] == ["completed"] * 8


@pytest.mark.parametrize("function", [mapped, local])
async def test_the_lowest_error_is_raised_when_what_runs_has_ended_and_what_is_done_is_undone(
    open_flows: OpenFlows, function: Any
) -> None:
    flows = await open_flows(function)
    flow = await flows.execute(function, [1, -1, 2, *range(3, 30)])
    with pytest.raises(Odd) as caught:
        await flow.result(240)
    assert caught.value.args == (-1,)
    calls = [each for each in did if isinstance(each, tuple)]
    assert len(calls) < 20, "no further call begins after an error"
    assert sorted(each for each in did if isinstance(each, str)) == sorted(
        f"forget {number * 10}" for number, _ in calls if number > 0
    )
    assert isinstance(caught.value.__cause__, StepError)
    assert (caught.value.__cause__.step, caught.value.__cause__.rollback) == ("analyse@0.1", "complete")


async def test_retries_plain_functions_and_errors_as_values(open_flows: OpenFlows) -> None:
    @durable("kept", retry=Retry(attempts=1))
    async def kept(ctx: FlowContext[None]) -> list[Any]:
        found = await ctx.map(analyse, [Page(-1), Page(1)], return_exceptions=True)
        texts = [type(each).__name__ if isinstance(each, Exception) else each for each in found]
        return [texts, await ctx.map(plain, [1, 2]), await ctx.map(plain, [])]

    flows = await open_flows(kept)
    assert await (await flows.execute(kept, None)).result(240) == [["HandlerError", 10], [2, 3], []]
    assert Counter(number for number, _ in did) == {-1: 2, 1: 1}
    did.clear()
    assert await run_inline(kept, None, replay="always", sleep=_no_time) == [["HandlerError", 10], [2, 3], []]


async def _no_time(_seconds: float) -> None:
    await asyncio.sleep(0)


async def test_a_cancel_reaches_the_items_that_run(open_flows: OpenFlows, until: Until) -> None:
    @durable("held")
    async def held(ctx: FlowContext[None]) -> list[int]:
        await ctx.map(analyse, [Page(7)])
        return await ctx.map(hold, [1, 2, 3], limit=2)

    flows = await open_flows(held)
    flow = await flows.execute(held, None)
    await until(lambda: did[1:] and set(did[1:]) == {1, 2}, "two run")
    await flow.cancel()
    with pytest.raises(FlowCancelled) as caught:
        await flow.result(240)
    assert (caught.value.rollback, did[3:]) == ("complete", ["forget 70"])


async def test_what_cannot_be_mapped_is_refused() -> None:
    async def undecorated(number: int) -> int:
        return number

    @durable("refused")
    async def function(ctx: FlowContext[None]) -> int:
        any_ctx: Any = ctx
        with pytest.raises(DefinitionError, match="expected the limit"):
            ctx.map(plain, [1], limit=0)
        for call in (undecorated, plain.using(timeout=5)):
            with pytest.raises(DefinitionError, match="local=True"):
                any_ctx.map(call, [1])
        with pytest.raises(PayloadError):
            any_ctx.map(plain, ["one"])
        return len(await any_ctx.map(undecorated, [1, 2], local=True))

    flow = RecordedFlow(function)
    flow.has_children = True
    for _ in range(2):
        ending = await flow.activate()
        assert isinstance(ending, Completed), ending
        assert ending.output == "2"


async def test_fewer_items_than_recorded_are_a_mismatch() -> None:
    @durable("shrinks")
    async def function(ctx: FlowContext[int]) -> list[int]:
        return await ctx.map(plain, range(ctx.input), local=True)

    flow = RecordedFlow(function, 3)
    assert isinstance(await flow.activate(), Completed)
    flow.given = 2
    assert isinstance(await flow.activate(), Diverged)


def test_a_job_of_a_map_that_may_have_taken_effect_is_unknown_in_the_report() -> None:
    child = Entry(
        kind="child",
        place="0.0",
        name="analyse",
        child="mapped~8b1cf1cba69ebab41af9/1/0-0/0",
        undo="key",
        started_ms=5,
    )
    lost = msgspec.structs.replace(
        child, kind="failed", error=msgspec.Raw(b'{"type":"StalledError","message":"the lease ran out"}')
    )
    lost.is_lost = True
    report = report_durable(
        "mapped~8b1cf1cba69ebab41af9",
        FlowMessage(input=msgspec.Raw(b"null")),
        {},
        FlowStatus("failed", "incomplete"),
        [child, lost],
    )
    assert (report.steps["analyse@0.0"].state, report.order) == ("unknown", [])
    assert report.steps["analyse@0.0"].error == "StalledError: the lease ran out"
    assert [path for path, _ in doubts_in([child, lost])] == ["analyse@0.0"], "as its caller hears"


class _Soon(Fleet):
    """Ends each child in the next round of the loop."""

    def follow(self, child: Child) -> asyncio.Future[Outcome]:
        if child.id not in self.children:
            self.children[child.id] = child
            asyncio.get_running_loop().call_soon(self.end, child.id)
        return self.follow_lost(child.id)


async def test_the_entries_that_a_map_reads_grow_with_its_items_and_not_faster() -> None:
    @durable("mapped")
    async def mapped(ctx: FlowContext[int]) -> int:
        return len(await ctx.map(next_one, range(ctx.input), limit=20))

    async def count_read(items: int) -> int:
        flow = RecordedFlow(mapped, items)
        flow.fleet = _Soon(flow.flow_id, lambda _name, number: number + 1)
        read = 0
        while True:
            read += len(flow.journal)
            ending = await flow.activate()
            if not isinstance(ending, Asleep):
                assert len(flow.journal) == 2 * items
                return read + len(flow.journal)
            await asyncio.sleep(0)

    assert await count_read(3000) <= 4 * await count_read(750)


@task
async def next_one(number: int) -> int:
    raise NotImplementedError  # the fleet of the test gives its end
