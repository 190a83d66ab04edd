"""Local flows that sleep and wait: the worker is killed at a named point, and another one goes on."""

from __future__ import annotations

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.journal import Journal
from harness.sites import Point, Site, check_twice, heard_of, run_caller, wait_state

from workflows import FlowCancelled, Signal

pytestmark = pytest.mark.servers("one")

GO = Signal("go", int)

POINTS = [
    Point("before", "entry sleep nap"),
    Point("after", "entry sleep nap"),
    Point("before", "suspended local-wait"),
    Point("after", "suspended local-wait"),
    Point("before", "entry step nap"),
    Point("after", "entry step nap"),
    Point("before", "entry wait go"),
    Point("after", "entry wait go"),
    Point("before", "entry step go"),
    Point("after", "entry step go"),
]
QUICK = ("after entry sleep nap", "before entry step go", "after entry wait go")


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            each, id=str(each), marks=() if f"{each.when} {each.where}" in QUICK else pytest.mark.long
        )
        for each in POINTS
    ],
)
async def test_a_sleep_keeps_its_end_and_a_wait_its_signal_when_a_worker_dies(
    point: Point, server: Backend, site: Site
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.local_wait, flow_app.Order(7))
        site.set_trap(point.when, point.where)
        site.begin()
        async with site.supervised():
            await wait_state(handle, "nap", "completed")
            await handle.signal(GO, 7)
            heard = await heard_of(handle)
            await site.wait_killed()
        assert heard == "order 7"
        check_twice(await site.judge(flows, handle, heard), handle.id, point)
        report = await handle.report()
        assert report.order == ["reserve", "nap", "go", "ship"]
        assert report.steps["go"].result == 7
        nap = report.steps["nap"]
        assert nap.ended_ms - nap.started_ms >= 1500


async def test_a_flow_waits_on_without_any_worker_and_gets_the_signal_of_that_time(
    server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        site.begin()
        handle = await flows.execute(flow_app.local_wait, flow_app.Order(7))
        await wait_state(handle, "nap", "completed")
        await wait_state(handle, "go", "waiting")
        site.kill()
        await handle.signal(GO, 9)
        async with site.supervised():
            heard = await heard_of(handle)
        assert heard == "order 7"
        assert (await handle.report()).steps["go"].result == 9
        ledger = await site.judge(flows, handle, heard)
        assert ledger.repeated(handle.id, "did") == []


async def test_a_flow_that_is_cancelled_while_it_waits_without_a_worker_is_undone(
    server: Backend, site: Site
) -> None:
    async with run_caller(server) as flows:
        site.begin()
        handle = await flows.execute(flow_app.local_wait, flow_app.Order(7))
        await wait_state(handle, "nap", "sleeping")
        site.kill()
        assert await handle.cancel("no more")
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, FlowCancelled)
        assert heard.rollback == "complete", "a sleep leaves nothing in doubt"
        report = await handle.report()
        assert {name: step.state for name, step in report.steps.items()} == {
            "reserve": "completed",
            "nap": "cancelled",
            "go": "cancelled",
            "ship": "cancelled",
        }
        await site.judge(flows, handle, heard)
