"""Local flows with a step for each item of a list: the worker is killed at a named point, and another one
goes on.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.journal import Journal
from harness.sites import Point, Site, heard_of, run_caller

from workflows import StepError

pytestmark = pytest.mark.servers("one")

ITEMS = [f"convert[{index}]" for index in range(5)]

FORWARD = [
    Point("before", "entry each convert"),
    Point("after", "entry each convert"),
    Point("in", "convert[2]"),
    Point("before", "entry step convert[3]", "did", "convert[3]"),
    Point("after", "entry step convert[3]"),
    Point("before", "entry step convert"),
    Point("after", "entry step convert"),
]
SAGA = [
    Point("after", "entry failed convert[4]"),
    Point("before", "entry undo convert[1]", "undid", "convert[1]"),
    Point("after", "entry undo convert[1]"),
]

QUICK = ("in convert[2]", "after entry step convert[3]", "after entry undo convert[1]")


def params(points: list[Point]) -> list[Any]:
    return [
        pytest.param(
            each, id=str(each), marks=() if f"{each.when} {each.where}" in QUICK else pytest.mark.long
        )
        for each in points
    ]


@pytest.mark.parametrize("point", params(FORWARD))
async def test_no_recorded_item_runs_again_when_a_worker_dies(
    point: Point, server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.local_each, flow_app.Order(7))
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
    # At most two items were active when the worker died; only what could not be said is done again.
    again = {name for name, count in did.items() if count > 1}
    recorded = {"convert[0]", "convert[1]"} if "convert[" in point.where else set[str]()
    assert not again & ({"reserve", "ship"} | recorded)
    if point.twice:
        assert point.twice in again
    if point.where == "entry step convert":
        assert again == set()
    assert len(again) <= 2


@pytest.mark.parametrize("point", params(SAGA))
async def test_each_recorded_item_is_undone_once_when_a_worker_dies(
    point: Point, server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.local_each, flow_app.Order(7, fails="convert[4]"))
        site.set_trap(point.when, point.where)
        site.begin()
        async with site.supervised():
            heard = await heard_of(handle)
            await site.wait_killed()
        assert isinstance(heard, StepError)
        assert heard.step == "convert[4]"
        report = await handle.report()
    completed = {"reserve", *ITEMS[:4]}
    assert {each.step for each in report.rollbacks if not each.error} == completed
    undid = [each.payload for each in journal.read("undid")]
    assert set(undid) == completed
    assert undid[-1] == "reserve"
    assert {name for name in undid if undid.count(name) > 1} == ({point.twice} if point.twice else set())


async def test_an_item_that_kills_its_workers_is_named_and_the_others_are_undone(
    server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.local_each, flow_app.Order(7, poison="convert[3]"))
        site.begin()
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, StepError)
        assert heard.rollback == "incomplete"
        assert "convert[3]" in [each.step for each in heard.rollback_errors]
        report = await handle.report()
    done = {name for name in ("reserve", *ITEMS[:3]) if name in [e.payload for e in journal.read("undid")]}
    assert {"reserve", "convert[0]", "convert[1]"} <= done
    assert report.steps["ship"].state == "cancelled"
    assert "ship" not in [each.payload for each in journal.read("began")]
