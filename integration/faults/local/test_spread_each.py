"""Local flows whose items are jobs: the worker is killed at a named point, and another one goes on."""

from __future__ import annotations

from collections import Counter

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.journal import Journal
from harness.sites import Point, Site, heard_of, run_caller

from workflows import FlowCancelled, StepError

pytestmark = pytest.mark.servers("one")

ITEMS = [f"convert[{index}]" for index in range(5)]

FORWARD = [
    Point("before", "entry each convert"),
    Point("before", "entry child convert[0]"),
    Point("after", "entry child convert[0]"),
    Point("before", "spawn"),
    Point("after", "spawn"),
    Point("in", "convert[2]"),
    Point("before", "completed convert"),
    Point("after", "completed convert"),
    Point("before", "entry step convert[3]"),
    Point("after", "entry step convert[3]"),
    Point("after", "entry step convert"),
]
QUICK = ("after entry child convert[0]", "in convert[2]", "before entry step convert[3]")


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            each, id=str(each), marks=() if f"{each.when} {each.where}" in QUICK else pytest.mark.long
        )
        for each in FORWARD
    ],
)
async def test_no_ended_item_runs_again_when_a_worker_dies(
    point: Point, server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.spread_each, flow_app.Order(7))
        site.set_trap(point.when, point.where)
        site.begin()
        async with site.supervised():
            heard = await heard_of(handle)
            await site.wait_killed()
        assert heard == "order 7"
        report = await handle.report()
    assert report.order == ["reserve", "convert", "ship"]
    assert report.steps["convert"].result == [f"{name} of 7" for name in ITEMS]
    did = Counter(each.payload for each in journal.read("did"))
    assert set(did) == {"reserve", *ITEMS, "ship"}
    # The job of an item has its end before the journal of the flow has; only an item that ran is done again,
    # and at most two run at a time.
    again = {name for name, count in did.items() if count > 1}
    assert again <= set(ITEMS)
    assert len(again) <= 2
    if point.where in ("entry each convert", "entry child convert[0]", "entry step convert"):
        assert again == set()


@pytest.mark.parametrize("where", ["entry failed convert[4]", "entry undo convert[1]"])
async def test_each_ended_item_is_undone_once_when_a_worker_dies(
    where: str, server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.spread_each, flow_app.Order(7, fails="convert[4]"))
        site.set_trap("after", where)
        site.begin()
        async with site.supervised():
            heard = await heard_of(handle)
            await site.wait_killed()
        assert isinstance(heard, StepError)
        assert (heard.step, heard.rollback) == ("convert[4]", "complete")
        report = await handle.report()
    completed = {"reserve", *ITEMS[:4]}
    assert {each.step for each in report.rollbacks if not each.error} == completed
    undid = [each.payload for each in journal.read("undid")]
    assert Counter(undid) == dict.fromkeys(completed, 1)
    assert undid[-1] == "reserve"


async def test_an_item_that_kills_its_workers_stops_the_flow_and_the_others_are_undone(
    server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.spread_each, flow_app.Order(7, poison="convert[3]"))
        site.begin()
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, StepError)
        assert (heard.step, heard.rollback) == ("convert[3]", "incomplete")
        assert "convert[3]" in [each.step for each in heard.rollback_errors]
    undid = {each.payload for each in journal.read("undid")}
    assert {"reserve", "convert[0]", "convert[1]", "convert[2]"} <= undid
    assert "ship" not in [each.payload for each in journal.read("began")]


async def test_a_cancel_reaches_the_items_that_run(server: Backend, site: Site, journal: Journal) -> None:
    async with run_caller(server) as flows:
        site.hold("convert[1]")
        handle = await flows.execute(flow_app.spread_each, flow_app.Order(7))
        site.begin()
        async with site.supervised():
            await site.wait_began("convert[1]")
            assert await handle.cancel("enough")
            heard = await heard_of(handle)
        assert isinstance(heard, FlowCancelled)
    undid = [each.payload for each in journal.read("undid")]
    assert {"reserve", "convert[0]"} <= set(undid)
    assert max(Counter(undid).values()) == 1
