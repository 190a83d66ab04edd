"""Mixed flows: the root runs the steps, except spread ones and sub-workflows, which run as jobs of
their own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.logged_flows import Log, MakeProvider, add_logged, kinds_of, members_of, serve_flows

from eventbus import HandlerError, Retry
from workflows import StepContext, StepError, StepFailed, Workflow, step

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)


async def test_only_what_is_spread_is_a_job(make_provider: MakeProvider) -> None:
    log: Log = []
    inner = Workflow[Any, Any]("inner")
    add_logged(inner, "deep", log)
    outer = Workflow[Any, Any]("outer")
    add_logged(outer, "first", log)

    @outer.step(spread=True)
    async def away(ctx: StepContext[Any]) -> list[Any]:
        return [ctx.input, ctx.result("first"), await ctx.load("first"), ctx.attempt]

    outer.flow(inner)
    add_logged(outer, "last", log)

    @outer.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return ctx.result("away")

    flows = serve_flows(make_provider, outer)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(outer, 7)
        assert await handle.result() == [7, "first", "first", 1]
        assert log == ["first", "deep", "last"]
        assert await members_of(flows, handle.id) == ["/1/away/0", "/1/inner/0/inner~0"]
        assert await kinds_of(flows, handle.id) == [
            "run",
            "step first",
            "child away",
            "step away",
            "child inner",
            "step inner",
            "step last",
        ]
        nested = f"{handle.id}/1/inner/0/inner~0"
        assert await kinds_of(flows, nested) == ["run", "step deep"]
        assert await members_of(flows, nested) == []
        report = await handle.report()
        tree = await flows.tree(handle.id)
    assert report.order == ["first", "away", "inner", "last"]
    assert all(step.started_ms and step.ended_ms >= step.started_ms for step in report.steps.values())
    assert [each.report.steps["deep"].state for each in tree.nested["inner"]] == ["completed"]


async def test_a_flow_that_waits_for_its_children_holds_no_place(make_provider: MakeProvider) -> None:
    innermost, inner, outer = (Workflow[Any, Any](name, retry=_ONCE) for name in ("c", "b", "a"))
    log: Log = []
    add_logged(innermost, "one", log, spread=True)
    inner.flow(innermost)
    outer.flow(inner)
    flows = serve_flows(make_provider, outer, concurrency=1)
    async with flows.provider, flows.provider.worker(), asyncio.timeout(240):
        await asyncio.gather(*[(await flows.execute(outer, n)).result() for n in range(4)])
    assert log == ["one"] * 4


async def test_what_follows_a_child_begins_while_a_local_step_still_runs(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("both", retry=_ONCE)
    may_end = asyncio.Event()

    @workflow.step(after=None, spread=True)
    async def away(ctx: StepContext[Any]) -> int:
        return 1

    @workflow.step(after=None)
    async def here(ctx: StepContext[Any]) -> None:
        await may_end.wait()

    @workflow.step(after=away)
    async def behind(ctx: StepContext[Any]) -> int:
        may_end.set()
        return ctx.result(away) + 1

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> int:
        return ctx.result(behind)

    flows = serve_flows(make_provider, workflow)
    async with flows.provider, flows.provider.worker(), asyncio.timeout(240):
        assert await (await flows.execute(workflow, None)).result() == 2


async def test_a_group_may_be_spread_and_its_members_run_in_other_workers(
    make_provider: MakeProvider,
) -> None:
    ran: list[str] = []

    async def act(ctx: StepContext[Any]) -> str:
        ran.append(ctx.step)
        await asyncio.sleep(0.01)
        return ctx.step

    workflow = Workflow[Any, Any]("group", retry=_ONCE)
    workflow.parallel(*(step(act, name=f"m{n}") for n in range(30)), spread=True)
    workflow.then(step(act, name="last"))
    flows, other = (serve_flows(make_provider, workflow, concurrency=4) for _ in range(2))
    async with flows.provider, other.provider, flows.provider.worker(), other.provider.worker():
        handle = await flows.execute(workflow, None)
        await handle.result()
        members = (await flows.provider.jobs.look(handle.id)).members
        report = await handle.report()
    assert sorted(ran) == sorted([*(f"m{n}" for n in range(30)), "last"])
    assert (ran[-1], len(members)) == ("last", 30)
    assert report.order[-1] == "last"


async def test_a_spread_step_has_its_attempts_and_its_errors(make_provider: MakeProvider) -> None:
    class Refused(Exception): ...

    workflow = Workflow[Any, Any]("tries", retry=Retry(attempts=2, delay=0.01), errors=[Refused])
    log: Log = []
    add_logged(workflow, "first", log)

    @workflow.step(spread=True)
    async def shaky(ctx: StepContext[Any]) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return ctx.attempt

    @workflow.step(spread=True, when=lambda ctx: ctx.input == "ask")
    async def asked(ctx: StepContext[Any]) -> None: ...

    @workflow.step(spread=True)
    async def refuse(ctx: StepContext[Any]) -> None:
        raise Refused("no") if ctx.input == "declared" else ValueError("down")

    flows = serve_flows(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, "declared")
        with pytest.raises(Refused, match="no"):
            await handle.result()
        report = await handle.report()
        assert (report.steps["shaky"].attempts, report.steps["shaky"].result) == (1, 2)
        assert {name: step.state for name, step in report.steps.items()} == {
            "first": "completed",
            "shaky": "completed",
            "asked": "skipped",
            "refuse": "failed",
        }
        assert report.steps["refuse"].attempts == 1
        tree = await flows.tree(handle.id)
        assert tree.errors["shaky"] == ["ConnectionError: not yet"]
        handle = await flows.execute(workflow, None)
        with pytest.raises(StepError) as caught:
            await handle.result()
    assert (caught.value.step, caught.value.rollback) == ("refuse", "complete")
    assert isinstance(caught.value.error, HandlerError)
    assert caught.value.error.attempts == 2
    assert log == ["first", "undo first"] * 2


async def test_the_ignored_failure_of_a_spread_step_is_kept_and_shown(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("ignored", retry=_ONCE)

    @workflow.step(spread=True, on_failure="ignore")
    async def optional(ctx: StepContext[Any]) -> int:
        raise ValueError("down")

    @workflow.step
    async def use(ctx: StepContext[Any]) -> str:
        with pytest.raises(StepFailed, match="down"):
            ctx.result(optional)
        return "used"

    @workflow.completed
    async def done(ctx: StepContext[Any]) -> str:
        return ctx.result(use)

    flows = serve_flows(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        assert await handle.result() == "used"
        step = (await handle.report()).steps["optional"]
    assert (step.state, step.error) == ("failed", "ValueError: down")


async def test_a_flow_that_began_spread_ends_spread(make_provider: MakeProvider) -> None:
    log: Log = []
    inner, outer = Workflow[Any, Any]("inner"), Workflow[Any, Any]("outer", retry=_ONCE, spread=True)
    add_logged(inner, "deep", log)

    @outer.step()
    async def first(ctx: StepContext[Any]) -> None:
        outer.spread = False  # as in a later release

    outer.flow(inner)

    @outer.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise ValueError("down")

    flows = serve_flows(make_provider, outer)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(outer, None)
        with pytest.raises(StepError):
            await handle.result()
        assert len(await members_of(flows, handle.id)) == 4
        assert await kinds_of(flows, handle.id) == []
    assert log == ["deep", "undo deep"]


async def test_a_worker_that_stops_leaves_its_children_to_others(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("moved", retry=_ONCE)
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @workflow.step(after=None, spread=True)
    async def away(ctx: StepContext[Any]) -> int:
        has_begun.set()
        await may_end.wait()
        return 1

    @workflow.step()
    async def behind(ctx: StepContext[Any]) -> int:
        return ctx.result(away) + 1

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> int:
        return ctx.result(behind)

    first, second = (serve_flows(make_provider, workflow) for _ in range(2))
    async with first.provider, first.provider.worker():
        handle = await first.execute(workflow, None)
        await has_begun.wait()
        async with second.provider, second.provider.worker():
            may_end.set()
            assert await handle.result() == 2


async def test_a_wait_ends_in_time_beside_many_children(make_provider: MakeProvider) -> None:
    outer = Workflow[Any, Any]("outer")

    async def away(_: StepContext[Any]) -> None:
        await asyncio.sleep(0.1)

    outer.parallel(*(step(away, name=f"away{number}") for number in range(40)), spread=True)
    outer.sleep("300ms", name="nap", after=None)
    flows = serve_flows(make_provider, outer, concurrency=1)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(outer, None)
        await handle.result()
        steps = (await handle.report()).steps
    assert steps["nap"].ended_ms < steps["away39"].ended_ms - 1000
