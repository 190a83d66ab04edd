"""Each crash window of a flow: its process is killed at a named point, and another process goes on.

The proxy finds most points in the calls themselves: `completed charge` is the settle that records this
step (`wire`). At the other points a function of the flow kills its own process (`step_actions`). The
ledger then compares what happened, what is recorded and what the caller got.
"""

from __future__ import annotations

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.sites import Point, Site, check_twice, heard_of, let_minutes_pass, run_caller, wait_state

from workflows import FlowCancelled, FlowTimeout, StepError

pytestmark = pytest.mark.servers("one")


FORWARD = [
    Point("before", "claim"),
    Point("after", "claimed reserve"),
    Point("in", "reserve"),
    Point("in", "charge"),
    Point("before", "completed charge", "did", "charge"),
    Point("after", "completed charge"),
    # The last of a parallel group: its settle lets the step after the group go on.
    Point("before", "completed wrap", "did", "wrap"),
    Point("after", "completed wrap"),
    Point("after", "claimed order"),
    Point("in", "completed"),
    Point("before", "completed order", "completed", "completed"),
    Point("after", "completed order"),
]


QUICK = ("in charge", "before completed wrap", "after claimed order", "before completed order")


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            each, id=str(each), marks=[] if f"{each.when} {each.where}" in QUICK else [pytest.mark.long]
        )
        for each in FORWARD
    ],
)
async def test_a_flow_completes_whose_worker_dies_at_any_point(
    point: Point, server: Backend, site: Site
) -> None:
    async with run_caller(server) as flows:
        site.hold("wrap")
        handle = await flows.execute(flow_app.order, flow_app.Order(7))
        site.set_trap(point.when, point.where)
        site.begin()
        async with site.supervised():
            await wait_state(handle, "pick", "completed")
            site.release("wrap")
            heard = await heard_of(handle)
            await site.wait_killed()
        assert heard == "order 7"
        check_twice(await site.judge(flows, handle, heard), handle.id, point)
    assert len(site.killed) == 1


SAGA = [
    Point("before", "acknowledge"),
    Point("after", "acknowledge"),
    Point("in", "the rollback of charge"),
    Point("before", "save undo:charge", "undid", "charge"),
    Point("after", "save undo:charge"),
    Point("in", "the rollback of pick"),
    Point("before", "save undo:pick", "undid", "pick"),
    Point("after", "save undo:wrap"),
    Point("before", "save undo:reserve", "undid", "reserve"),
    Point("after", "save undo:reserve"),
    Point("in", "failed"),
    Point("before", "save hook:failed", "failed", "failed"),
    Point("after", "save hook:failed"),
]
CAUSES = {"failed": StepError, "cancelled": FlowCancelled, "timeout": FlowTimeout}


def saga_points() -> list[object]:
    """All for a failed step; for the other causes those at which the cause may make a difference.

    Where time is short, two windows of a failed step suffice, and one of the others: local flows show the
    rest.
    """
    rows = [("failed", Point("before", "failed ship")), ("failed", Point("after", "failed ship"))]
    for cause in CAUSES:
        ends = "cancelled order" if cause == "cancelled" else "failed order"
        chosen = SAGA if cause == "failed" else [*SAGA[:5], *SAGA[-3:]]
        rows += [(cause, each) for each in [*chosen, Point("before", ends), Point("after", ends)]]
    short = {
        "failed": {"after failed ship", "before save undo:pick"},
        "cancelled": {"before cancelled order"},
        "timeout": {"before acknowledge"},
    }
    return [
        pytest.param(
            cause,
            point,
            id=f"{cause}-{point}",
            marks=() if str(point).replace("-", " ") in short[cause] else pytest.mark.long,
        )
        for cause, point in rows
    ]


@pytest.mark.parametrize(("cause", "point"), saga_points())
async def test_a_stopped_flow_is_undone_whose_worker_dies_at_any_point(
    cause: str, point: Point, server: Backend, site: Site
) -> None:
    fails = "ship" if cause == "failed" else ""
    async with run_caller(server) as flows:
        site.hold("wrap")
        if not fails:
            site.hold("ship")
        site.set_trap(point.when, point.where)
        site.begin()
        handle = await flows.execute(
            flow_app.order, flow_app.Order(7, fails), timeout="1h" if cause == "timeout" else None
        )
        async with site.supervised():
            await wait_state(handle, "pick", "completed")
            site.release("wrap")
            if not fails:
                await site.wait_began("ship")
            if cause == "cancelled":
                assert await handle.cancel("no more")
            elif cause == "timeout":
                assert let_minutes_pass(server, f"timeout:{handle.id}") > 3000
            heard = await heard_of(handle)
            await site.wait_killed()
        assert isinstance(heard, CAUSES[cause])
        assert heard.rollback == "complete"
        report = await handle.report()
        assert [each.step for each in report.rollbacks] == ["charge", "wrap", "pick", "reserve"]
        check_twice(await site.judge(flows, handle, heard), handle.id, point)
    assert len(site.killed) == 1


@pytest.mark.parametrize("point", [Point("before", "spawn"), Point("after", "spawn")], ids=str)
async def test_a_flow_that_adds_its_steps_itself_completes_whose_worker_dies_then(
    point: Point, server: Backend, site: Site
) -> None:
    declared = flow_app.declared()
    async with run_caller(server, declared) as flows:
        handle = await flows.execute(declared, flow_app.Order(7))
        site.set_trap(point.when, point.where)
        site.begin()
        async with site.supervised():
            heard = await heard_of(handle)
            await site.wait_killed()
        assert heard == "order 7"
        check_twice(await site.judge(flows, handle, heard), handle.id, point)
