"""Each crash window of a local flow: the worker that runs its steps is killed at a named point, and another
one goes on.

A step that was recorded does not run again, and one whose record was lost does. `entry step charge` is the
call that records a step, `entry stop` the one that notes which steps are in doubt (`wire`); at other points a
function of the flow kills its own process (`step_actions`).
"""

from __future__ import annotations

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.journal import Journal
from harness.sites import Point, Site, check_twice, heard_of, let_minutes_pass, run_caller, wait_state

from workflows import FlowCancelled, FlowTimeout, StepError

pytestmark = pytest.mark.servers("one")

FORWARD = [
    Point("before", "claim"),
    Point("after", "claimed local-order"),
    Point("in", "reserve"),
    Point("before", "entry step reserve", "did", "reserve"),
    Point("after", "entry step reserve"),
    Point("in", "pick"),
    Point("before", "entry step pick", "did", "pick"),
    Point("after", "entry step pick"),
    Point("before", "entry step wrap", "did", "wrap"),
    Point("after", "entry step wrap"),
    Point("in", "charge"),
    Point("before", "entry step charge", "did", "charge"),
    Point("after", "entry step charge"),
    Point("in", "ship"),
    Point("before", "entry step ship", "did", "ship"),
    Point("after", "entry step ship"),
    Point("in", "completed"),
    Point("before", "completed local-order", "completed", "completed"),
    Point("after", "completed local-order"),
]
QUICK = ("before entry step wrap", "after entry step pick", "before completed local-order")


def points(every: list[Point], quick: tuple[str, ...]) -> list[object]:
    """All of them; where time is short, those of `quick`."""
    return [
        pytest.param(
            each, id=str(each), marks=() if f"{each.when} {each.where}" in quick else pytest.mark.long
        )
        for each in every
    ]


@pytest.mark.parametrize("point", points(FORWARD, QUICK))
async def test_a_local_flow_completes_whose_worker_dies_at_any_point(
    point: Point, server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        site.hold("wrap")
        handle = await flows.execute(flow_app.local_order, flow_app.Order(7))
        site.set_trap(point.when, point.where)
        site.begin()
        async with site.supervised():
            await wait_state(handle, "pick", "completed")
            if point == Point("after", "entry step pick"):  # else it may do `wrap` and die before it says so
                await site.wait_killed()
            site.release("wrap")
            heard = await heard_of(handle)
            await site.wait_killed()
        assert heard == "order 7"
        check_twice(await site.judge(flows, handle, heard), handle.id, point)
        report = await handle.report()
        assert report.order == ["reserve", "pick", "wrap", "charge", "ship"]
    assert len(site.killed) == 1
    first, other = site.killed[0], site.supervisor.current.pid
    pids = [each.pid for each in journal.read() if each.pid in (first, other)]
    assert pids == sorted(pids, key=(first, other).index), "the dead one did nothing more"


RETRIES = [
    Point("in", "attempt 1 of short"),
    Point("before", "entry try short"),
    Point("after", "entry try short"),
    Point("in", "attempt 2 of short"),
    Point("in", "short"),
    Point("before", "entry try long"),
    Point("after", "entry try long"),
    Point("before", "suspended local-retry"),
    Point("after", "suspended local-retry"),
    Point("in", "attempt 2 of long"),
    Point("in", "long"),
]


@pytest.mark.parametrize("point", points(RETRIES, ("after entry try short", "in attempt 2 of long")))
async def test_attempts_are_counted_on_when_a_worker_dies_between_them(
    point: Point, server: Backend, site: Site, journal: Journal
) -> None:
    """The number of the next attempt is known once the failed one is recorded, and not before."""
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.local_retry, flow_app.Order(7))
        site.set_trap(point.when, point.where)
        site.begin()
        async with site.supervised():
            heard = await heard_of(handle)
            await site.wait_killed()
        assert heard == "order 7"
        report = await handle.report()
        assert {name: step.attempts for name, step in report.steps.items()} == {
            "reserve": 0,
            "short": 2,
            "long": 2,
            "ship": 0,
        }
        await site.judge(flows, handle, heard)
    tried = {
        name: [e.attempt for e in journal.read("tried") if e.payload == name] for name in ("short", "long")
    }
    again = {"in attempt 1 of short": (1, "short"), "before entry try short": (1, "short")}
    again |= {"in attempt 2 of short": (2, "short"), "in attempt 2 of long": (2, "long")}
    again |= {"before entry try long": (1, "long")}
    expected = {"short": [1, 2], "long": [1, 2]}
    if found := again.get(f"{point.when} {point.where}"):
        attempt, name = found
        expected[name] = sorted([*expected[name], attempt])
    assert tried == expected


SAGA = [
    Point("before", "entry stop"),
    Point("after", "entry stop"),
    Point("before", "acknowledge"),
    Point("after", "acknowledge"),
    Point("in", "the rollback of charge"),
    Point("before", "entry undo charge", "undid", "charge"),
    Point("after", "entry undo charge"),
    Point("in", "the rollback of wrap"),
    Point("before", "entry undo wrap", "undid", "wrap"),
    Point("after", "entry undo wrap"),
    Point("in", "the rollback of pick"),
    Point("before", "entry undo pick", "undid", "pick"),
    Point("after", "entry undo pick"),
    Point("before", "entry undo reserve", "undid", "reserve"),
    Point("after", "entry undo reserve"),
    Point("in", "failed"),
    Point("before", "entry hook failed", "failed", "failed"),
    Point("after", "entry hook failed"),
]
CAUSES = {"failed": StepError, "cancelled": FlowCancelled, "timeout": FlowTimeout}
FAILS = [Point(when, "entry failed ship") for when in ("before", "after")]
QUICK_SAGA = {
    "failed": ("after entry failed ship", "before entry undo pick"),
    "cancelled": ("before entry stop",),
    "timeout": ("before failed local-order",),
}


def saga_points() -> list[object]:
    """All for each cause; where time is short, some of a failed step, and one of the others."""
    rows: list[object] = []
    for cause in CAUSES:
        ends = "cancelled local-order" if cause == "cancelled" else "failed local-order"
        every = [*(FAILS if cause == "failed" else ()), *SAGA]
        every += [Point(when, ends) for when in ("before", "after")]
        rows += [
            pytest.param(
                cause,
                each,
                id=f"{cause}-{each}",
                marks=() if f"{each.when} {each.where}" in QUICK_SAGA[cause] else pytest.mark.long,
            )
            for each in every
        ]
    return rows


@pytest.mark.parametrize(("cause", "point"), saga_points())
async def test_a_stopped_local_flow_is_undone_whose_worker_dies_at_any_point(
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
            flow_app.local_order, flow_app.Order(7, fails), timeout="1h" if cause == "timeout" else None
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
        ledger = await site.judge(flows, handle, heard)
        if point in FAILS and point.when == "before":
            assert ledger.count(handle.id, "began", "ship") == 2, "its failure was not recorded"
        check_twice(ledger, handle.id, point)
    assert len(site.killed) == 1
