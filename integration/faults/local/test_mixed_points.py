"""Each crash window of a mixed flow: a local root with a spread step and a sub-workflow, whose worker is
killed.

The child that has ended meanwhile is not run again, and one that was recorded and not added is added.
`entry child away` is the call that records a child, `adds` the one that adds it while the root goes on,
`spawn` the one with which the root waits.
"""

from __future__ import annotations

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.sites import Point, Site, check_twice, heard_of, run_caller, wait_state

from eventbus import StalledError
from workflows import FlowCancelled, StepError

pytestmark = pytest.mark.servers("one")

FORWARD = [
    Point("before", "entry child away"),
    Point("after", "entry child away"),
    Point("before", "adds"),
    Point("after", "adds"),
    Point("in", "away"),
    Point("before", "completed away", "did", "away"),
    Point("after", "completed away"),
    Point("in", "pick"),
    Point("before", "entry step away"),
    Point("after", "entry step away"),
    Point("before", "entry child packing"),
    Point("after", "entry child packing"),
    Point("before", "spawn"),
    Point("after", "spawn"),
    Point("in", "wrap"),
    Point("after", "entry step wrap"),
    Point("before", "completed packing"),
    Point("after", "completed packing"),
    Point("before", "entry step packing"),
    Point("after", "entry step packing"),
    Point("in", "ship"),
    Point("before", "completed mixed", "completed", "completed"),
]
_WHILE_PICK_IS_HELD = ("entry child away", "adds", "away", "completed away", "entry step away")
"""The places that a worker comes to before `pick` may end."""
QUICK = ("after entry child away", "after adds", "after spawn", "after completed packing")


def _points(every: list[Point], quick: tuple[str, ...]) -> list[object]:
    return [
        pytest.param(
            each, id=str(each), marks=() if f"{each.when} {each.where}" in quick else pytest.mark.long
        )
        for each in every
    ]


@pytest.mark.parametrize("point", _points(FORWARD, QUICK))
async def test_a_mixed_flow_completes_whose_worker_dies_at_any_point(
    point: Point, server: Backend, site: Site
) -> None:
    async with run_caller(server) as flows:
        site.hold("pick")
        handle = await flows.execute(flow_app.mixed, flow_app.Order(7))
        site.set_trap(point.when, point.where)
        site.begin()
        async with site.supervised():
            await wait_state(handle, "away", "completed")
            if (
                point.where in _WHILE_PICK_IS_HELD
            ):  # otherwise the worker may do `pick` and die before it says so
                await site.wait_killed()
            site.release("pick")
            heard = await heard_of(handle)
            await site.wait_killed()
        assert heard == "order 7"
        check_twice(await site.judge(flows, handle, heard), handle.id, point)
        report = await handle.report()
        assert sorted(report.order[1:3]) == ["away", "pick"]
        assert [*report.order[:1], *report.order[3:]] == ["reserve", "packing", "ship"]
    assert len(site.killed) == 1


SAGA = [
    Point("before", "entry failed ship"),
    Point("after", "entry failed ship"),
    Point("before", "entry stop"),
    Point("after", "entry stop"),
    Point("in", "the rollback of label"),
    Point("after", "entry undo packing/label"),
    Point("before", "entry undo packing/wrap", "undid", "wrap"),
    Point("in", "the rollback of away"),
    Point("before", "entry undo away", "undid", "away"),
]


@pytest.mark.parametrize("point", _points(SAGA, ("after entry undo packing/label",)))
async def test_a_stopped_mixed_flow_is_undone_whose_worker_dies_at_any_point(
    point: Point, server: Backend, site: Site
) -> None:
    async with run_caller(server) as flows:
        site.hold("pick")
        site.set_trap(point.when, point.where)
        site.begin()
        handle = await flows.execute(flow_app.mixed, flow_app.Order(7, "ship"))
        async with site.supervised():
            await wait_state(handle, "away", "completed")
            site.release("pick")
            heard = await heard_of(handle)
            await site.wait_killed()
        assert isinstance(heard, StepError)
        assert (heard.step, heard.rollback) == ("ship", "complete")
        report = await handle.report()
        undone = [each.step for each in report.rollbacks]
        assert undone[:2] == ["packing/label", "packing/wrap"]
        assert (sorted(undone[2:4]), undone[4:]) == (["away", "pick"], ["reserve"])
        ledger = await site.judge(flows, handle, heard)
        twice = ledger.repeated(handle.id, "undid") + [
            name for flow in ledger.flows - {handle.id} for name in ledger.repeated(flow, "undid")
        ]
        assert twice == ([point.twice] if point.twice else [])
    assert len(site.killed) == 1


async def test_a_child_that_ends_while_its_root_is_stopped_is_undone(server: Backend, site: Site) -> None:
    """The root hears of the end of the child only with its stop: its worker dies while the child runs."""
    async with run_caller(server) as flows:
        site.hold("away")
        site.hold("pick")
        site.begin(grace="1s")
        handle = await flows.execute(flow_app.mixed, flow_app.Order(7, "pick"))
        async with site.supervised():
            await site.wait_began("away", "pick")
            site.release("pick")
            await wait_state(handle, "pick", "failed")
            site.release("away")
            heard = await heard_of(handle)
        assert isinstance(heard, StepError)
        assert (heard.step, heard.rollback) == ("pick", "complete")
        report = await handle.report()
        assert [each.step for each in report.rollbacks] == ["away", "reserve"]
        await site.judge(flows, handle, heard)


async def test_a_cancelled_flow_whose_worker_died_undoes_what_its_child_did(
    server: Backend, site: Site
) -> None:
    async with run_caller(server) as flows:
        site.hold("pick")
        site.hold("ship")
        site.begin()
        handle = await flows.execute(flow_app.mixed, flow_app.Order(7))
        async with site.supervised():
            await wait_state(handle, "away", "completed")
            site.kill()
            assert await handle.cancel("no more")
            site.release("pick")
            heard = await heard_of(handle)
        assert isinstance(heard, FlowCancelled)
        report = await handle.report()
        assert {"away", "reserve"} <= {each.step for each in report.rollbacks}
        await site.judge(flows, handle, heard)


async def test_a_child_that_killed_its_workers_stays_in_doubt_although_its_failure_is_ignored(
    server: Backend, site: Site
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.ignoring, flow_app.Order(7, fails="ship", poison="away"))
        site.begin(max_stalls=1)
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, StepError)
        assert (heard.step, heard.rollback) == ("ship", "incomplete")
        assert [(each.step, type(each.error)) for each in heard.rollback_errors] == [("away", StalledError)]
        report = await handle.report()
        assert report.steps["away"].state == "unknown"
        assert [each.step for each in report.rollbacks] == ["pick"]
        await site.judge(flows, handle, heard)
