"""Each crash window of a spread flow that waits for a signal: of the job that waits, and of the root that
gives it the signal.

`entry wait go` is the call by which the job records its wait, `signal spread-wait` the one by which it tells
its root, and `suspended go` its sleep. `entry signal go` is the call by which the root records whose the
signal is, `signal go` the one that gives it to the job, and `spawn` the one with which the root waits on. The
signal is sent before the wait begins, at the instant at which the worker is dead, or afterwards. It is given
once, whenever that is.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.sites import Point, Site, check_twice, heard_of, run_caller, wait_state

from workflows import FlowCancelled, FlowHandle, Signal

pytestmark = pytest.mark.servers("one")

GO = Signal("go", int)

BEGINS = [
    Point("after", "claimed go"),
    Point("before", "entry wait go"),
    Point("after", "entry wait go"),
    Point("before", "signal spread-wait"),
    Point("after", "signal spread-wait"),
    Point("before", "suspended go"),
    Point("after", "suspended go"),
]
GIVES = [
    Point("before", "entry signal go"),
    Point("after", "entry signal go"),
    Point("before", "signal go"),
    Point("after", "signal go"),
    Point("before", "completed go"),
    Point("after", "completed go"),
]
QUICK = {
    ("after", "signal spread-wait", "dead"),
    ("after", "suspended go", "dead"),
    ("after", "entry signal go", "before"),
    ("after", "signal go", "waiting"),
}


def _cases() -> list[object]:
    every = [(point, sent) for point in BEGINS for sent in ("before", "dead", "after")]
    every += [(point, sent) for point in GIVES for sent in ("before", "waiting")]
    return [
        pytest.param(
            point,
            sent,
            id=f"{point}-{sent}",
            marks=() if (point.when, point.where, sent) in QUICK else pytest.mark.long,
        )
        for point, sent in every
    ]


@pytest.mark.parametrize(("point", "sent"), _cases())
async def test_a_signal_comes_once_whichever_worker_dies_around_it(
    point: Point, sent: str, server: Backend, site: Site
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.spread_wait, flow_app.Order(7))
        if sent == "before":
            await handle.signal(GO, 7)
        site.set_trap(point.when, point.where)
        site.begin()
        if sent == "waiting":
            await _wait_open(handle)
            await handle.signal(GO, 7)
        worker = site.supervisor.current
        await until("it died", lambda: worker.has_ended, story=site.supervisor.story)
        if sent == "dead":
            await handle.signal(GO, 7)
        async with site.supervised():
            if sent == "after":
                await _wait_open(handle)
                await handle.signal(GO, 7)
            heard = await heard_of(handle)
            await site.wait_killed()
        await _check(point, heard, server, site, handle)


async def _wait_open(handle: FlowHandle[Any]) -> None:
    """Wait until the step waits for the signal: it is shown as waiting before it can begin, too."""
    await wait_state(handle, "nap", "completed")
    while (  # noqa: ASYNC110
        not (found := (await handle.report()).steps["go"]).started_ms or found.state != "waiting"
    ):
        await asyncio.sleep(0.02)


async def _check(point: Point, heard: object, server: Backend, site: Site, handle: FlowHandle[Any]) -> None:
    assert heard == "order 7"
    async with run_caller(server) as flows:
        check_twice(await site.judge(flows, handle, heard), handle.id, point)
    report = await handle.report()
    assert report.order == ["reserve", "nap", "go", "ship"]
    assert report.steps["go"].result == 7
    assert len(site.killed) == 1


async def test_a_second_signal_is_left_for_nobody_and_the_first_one_counts(
    server: Backend, site: Site
) -> None:
    """Both come while no worker runs: the one that came first is the one that the step gets."""
    async with run_caller(server) as flows:
        site.begin()
        handle = await flows.execute(flow_app.spread_wait, flow_app.Order(7))
        await _wait_open(handle)
        site.kill()
        await handle.signal(GO, 1)
        await handle.signal(GO, 2)
        async with site.supervised():
            heard = await heard_of(handle)
        assert heard == "order 7"
        assert (await handle.report()).steps["go"].result == 1


async def test_a_spread_wait_that_is_cancelled_without_a_worker_leaves_nothing_in_doubt(
    server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        site.begin()
        handle = await flows.execute(flow_app.spread_wait, flow_app.Order(7))
        await _wait_open(handle)
        site.kill()
        assert await handle.cancel("no more")
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, FlowCancelled)
        assert (heard.rollback, heard.rollback_errors) == ("complete", ())
        report = await handle.report()
        assert {name: step.state for name, step in report.steps.items()} == {
            "reserve": "completed",
            "nap": "completed",
            "go": "cancelled",
            "ship": "cancelled",
        }
        assert [each.payload for each in journal.read("undid")] == ["reserve"]
        await site.judge(flows, handle, heard)
