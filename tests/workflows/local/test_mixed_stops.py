"""Mixed flows that stop: what runs elsewhere ends, is undone, and is kept by a retry by hand."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from functools import partial
from typing import Any

import pytest
from drivers.logged_flows import Log, MakeProvider, add_logged, kinds_of, serve_flows

from eventbus import Retry
from workflows import FlowCancelled, StepContext, StepError, Workflow

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)


async def test_a_spread_step_ends_its_attempt_when_another_step_fails_and_is_undone(
    make_provider: MakeProvider,
) -> None:
    workflow = Workflow[Any, Any]("gentle", retry=_ONCE)
    log: Log = []
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @workflow.step(after=None, spread=True)
    async def away(ctx: StepContext[Any]) -> str:
        has_begun.set()
        await may_end.wait()
        return "away"

    @away.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")

    @workflow.step(after=None)
    async def fall(ctx: StepContext[Any]) -> None:
        await has_begun.wait()
        raise ValueError("down")

    add_logged(workflow, "never", log, after=[away])
    flows = serve_flows(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        async with asyncio.timeout(240):
            while (await handle.report()).steps["fall"].state != "failed":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        may_end.set()
        with pytest.raises(StepError) as caught:
            await handle.result()
        report = await handle.report()
        assert await kinds_of(flows, handle.id) == [
            "run",
            "child away",
            "failed fall",
            "step away",
            "stop",
            "undo away",
        ]
    assert (caught.value.step, caught.value.rollback, log) == ("fall", "complete", ["undo away"])
    assert [report.steps[name].state for name in ("away", "fall", "never")] == [
        "completed",
        "failed",
        "cancelled",
    ]


async def test_a_cancel_reaches_a_spread_step(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("stop", retry=_ONCE)
    log: Log = []
    has_begun = asyncio.Event()
    add_logged(workflow, "first", log)

    @workflow.step(spread=True)
    async def away(ctx: StepContext[Any]) -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cut")

    flows = serve_flows(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        await has_begun.wait()
        assert await handle.cancel("enough")
        with pytest.raises(FlowCancelled, match="enough"):
            await handle.result()
        report = await handle.report()
    assert log == ["first", "cut", "undo first"]
    assert report.steps["away"].state == "cancelled"


@pytest.mark.parametrize("spread", ["outer", "inner"])
async def test_flows_of_both_ways_are_undone_in_the_reverse_order(
    make_provider: MakeProvider, spread: str
) -> None:
    log: Log = []
    inner = Workflow[Any, Any]("inner", retry=_ONCE, spread=spread == "inner")
    outer = Workflow[Any, Any]("outer", retry=_ONCE, spread=spread == "outer")
    for name in ("a", "b"):
        add_logged(inner, name, log)
    add_logged(outer, "first", log)
    outer.flow(inner)
    add_logged(outer, "last", log, spread=True)

    @outer.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise ValueError("down")

    flows = serve_flows(make_provider, outer)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(outer, None)
        with pytest.raises(StepError) as caught:
            await handle.result()
        report = await handle.report()
    assert log[4:] == ["undo last", "undo b", "undo a", "undo first"]
    assert [each.step for each in report.rollbacks] == ["last", "inner/b", "inner/a", "first"]
    assert caught.value.rollback == "complete"


async def test_a_retry_by_hand_keeps_completed_children(make_provider: MakeProvider) -> None:
    log: Log = []
    inner, second = Workflow[Any, Any]("inner", retry=_ONCE), Workflow[Any, Any]("second", retry=_ONCE)
    is_broken = True

    @inner.step()
    async def deep(ctx: StepContext[Any]) -> str:
        log.append("deep")
        return "deep"

    add_logged(second, "undone", log)
    outer = Workflow[Any, Any]("outer", retry=_ONCE)

    @outer.step(spread=True)
    async def away(ctx: StepContext[Any]) -> str:
        log.append("away")
        return "away"

    outer.flow(inner)
    outer.flow(second)

    @outer.step()
    async def fall(ctx: StepContext[Any]) -> list[Any]:
        if is_broken:
            raise ValueError("down")
        return [ctx.result(away), ctx.run]

    @outer.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return ctx.result(fall)

    flows = serve_flows(make_provider, outer)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(outer, None)
        with pytest.raises(StepError):
            await handle.result()
        is_broken = False
        assert await (await flows.retry(handle.id)).result() == ["away", 2]
        report = await handle.report()
        tree = await flows.tree(handle.id)
    assert log == ["away", "deep", "undone", "undo undone", "undone"]
    assert report.order == ["away", "inner", "second", "fall"]
    assert {name: len(found) for name, found in tree.nested.items()} == {"inner": 1, "second": 1}


async def test_a_step_that_others_cancelled_fails_its_flow(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("alone", retry=_ONCE)
    log: Log = []
    has_begun = asyncio.Event()
    add_logged(workflow, "first", log)

    @workflow.step(spread=True)
    async def away(ctx: StepContext[Any]) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    flows = serve_flows(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        await has_begun.wait()
        assert await flows.provider.jobs.cancel(f"{handle.id}/1/away/0", "not this one")
        with pytest.raises(StepError) as caught:
            await handle.result()
    assert (caught.value.step, log) == ("away", ["first", "undo first"])


async def test_a_failure_that_is_ignored_is_none_to_undo_though_it_came_while_the_flow_stopped(
    make_provider: MakeProvider,
) -> None:
    workflow = Workflow[Any, Any]("declined", retry=_ONCE)
    log: Log = []
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @workflow.step(after=None, spread=True, on_failure="ignore")
    async def away(ctx: StepContext[Any]) -> None:
        has_begun.set()
        await may_end.wait()
        raise OSError("declined")

    @away.rollback
    async def undo(ctx: StepContext[Any], result: None) -> None:
        log.append("undo")

    @workflow.step(after=None)
    async def fall(ctx: StepContext[Any]) -> None:
        await has_begun.wait()
        raise ValueError("down")

    flows = serve_flows(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        async with asyncio.timeout(240):
            while (await handle.report()).steps["fall"].state != "failed":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        may_end.set()
        with pytest.raises(StepError) as caught:
            await handle.result()
        report = (await handle.report()).steps["away"]
    assert (caught.value.step, caught.value.rollback, log) == ("fall", "none", [])
    assert (report.state, report.error) == ("failed", "OSError: declined")


def _charging(*, spread: bool, in_job: bool, log: Log, has_rollback: bool) -> Workflow[Any, Any]:
    workflow = Workflow[Any, Any]("charging", retry=_ONCE, spread=spread)

    @workflow.step(spread=in_job)
    async def charge(ctx: StepContext[Any]) -> str:
        return "x" * 5000  # more than is kept in memory for another rollback

    if has_rollback:

        @charge.rollback
        async def refund(ctx: StepContext[Any], result: str) -> None:
            log.append(f"refund {len(result)}")

    @workflow.step
    async def last(ctx: StepContext[Any]) -> None:
        await asyncio.Event().wait()

    return workflow


@pytest.mark.parametrize(("spread", "in_job"), [(False, False), (False, True), (True, False)])
async def test_a_release_without_the_rollback_of_a_step_leaves_its_undoing_to_one_that_has_it(
    make_provider: MakeProvider, logs: list[MutableMapping[str, Any]], *, spread: bool, in_job: bool
) -> None:
    log: Log = []
    made = partial(_charging, spread=spread, in_job=in_job, log=log)
    workflow, without = made(has_rollback=True), made(has_rollback=False)
    assert workflow.version == without.version
    flows, other = serve_flows(make_provider, workflow), serve_flows(make_provider, without)
    async with flows.provider, other.provider:
        async with flows.provider.worker():
            handle = await flows.execute(workflow, None)
            async with asyncio.timeout(240):
                while (await handle.report()).steps["charge"].state != "completed":  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        async with other.provider.worker():
            await handle.cancel()
            async with asyncio.timeout(240):
                while not [each for each in logs if "flow parked" in each["event"]]:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        (why,) = {each["error"] for each in logs if "flow parked" in each["event"]}
        assert (why, log) == ("the rollback of step charge of workflow charging", [])
        async with flows.provider.worker():
            with pytest.raises(FlowCancelled) as caught:
                await handle.result()
    assert (caught.value.rollback, log) == ("complete", ["refund 5000"])
