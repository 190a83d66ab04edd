"""Local flows with siblings: what ran when a worker died is done again, what was recorded is not, and what is
in doubt is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.sites import LEASE, Site, heard_of, let_minutes_pass, run_caller, wait_state

from eventbus import StalledError
from workflows import FlowCancelled, FlowHandle, FlowTimeout, StepError, WorkflowProvider

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")

STOPS = {"cancelled": FlowCancelled, "timeout": FlowTimeout}


async def test_recorded_siblings_do_not_run_again_and_the_others_do(
    server: Backend, site: Site, journal: Journal
) -> None:
    every = [f"m{n}" for n in range(12)]
    held = every[7:]
    for step in held:
        site.hold(step)
    site.begin()
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.local_wide, flow_app.Order(7))
        for step in every[:7]:
            await wait_state(handle, step, "completed")
        await site.wait_began(*held)
        site.kill()
        for step in held:
            site.release(step)
        async with site.supervised():
            heard = await heard_of(handle)
        assert heard is None
        ledger = await site.judge(flows, handle, heard)
    began = Counter(each.payload for each in journal.read("began"))
    assert began == Counter(every) + Counter(held)
    assert ledger.repeated(handle.id, "did") == []


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        ("charge", "cancelled"),
        pytest.param("charge", "timeout", marks=pytest.mark.long),
        pytest.param("ship", "cancelled", marks=pytest.mark.long),
        pytest.param("ship", "timeout", marks=pytest.mark.long),
    ],
)
async def test_a_step_whose_worker_is_dead_when_its_local_flow_is_stopped_is_named_as_unknown(
    step: str, cause: str, server: Backend, site: Site
) -> None:
    """It is unknown whether `charge` must be undone; `ship` has no rollback."""
    async with run_caller(server) as flows:
        site.hold(step)
        site.begin()
        handle = await flows.execute(
            flow_app.local_order, flow_app.Order(7), timeout="1h" if cause == "timeout" else None
        )
        await site.wait_began(step)
        site.kill()
        if cause == "cancelled":
            assert await handle.cancel("no more")
        else:
            assert let_minutes_pass(server, f"timeout:{handle.id}") > 3000
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, STOPS[cause])
        report = await handle.report()
        assert report.steps[step].state == "unknown"
        named = [step] if step == "charge" else []
        assert [each.step for each in heard.rollback_errors] == named
        assert heard.rollback == ("incomplete" if named else "complete")
        await site.judge(flows, handle, heard)


@pytest.mark.long
async def test_a_step_that_was_rescued_and_then_stopped_before_it_ran_again_is_unknown_too(
    server: Backend, site: Site, run: Run
) -> None:
    async with run_caller(server) as flows:
        site.hold("charge")
        site.begin()
        handle = await flows.execute(flow_app.local_order, flow_app.Order(7))
        await site.wait_began("charge")
        site.kill()
        rescuer = run("worker", "apps.event_app:provider", url=server.url, lease=LEASE)  # it knows no flows
        await until(
            "its lease ran out", lambda: rescuer.logged("job stalled, given back"), story=rescuer.story
        )
        assert await handle.cancel("no more")
        async with site.supervised():
            heard = await heard_of(handle)
        await check_unknown(site, flows, handle, heard, "charge")


async def check_unknown(
    site: Site, flows: WorkflowProvider, handle: FlowHandle[Any], heard: object, step: str
) -> None:
    """The flow was cancelled, and all is undone but this step, of which nobody knows what it did."""
    assert isinstance(heard, FlowCancelled)
    report = await handle.report()
    assert report.steps[step].state == "unknown"
    assert heard.rollback == "incomplete"
    assert [(each.step, type(each.error)) for each in heard.rollback_errors] == [(step, StalledError)]
    await site.judge(flows, handle, heard)


@pytest.mark.parametrize("recorded", [pytest.param(False, marks=pytest.mark.long), True])
async def test_a_step_that_is_cut_in_its_second_run_is_unknown_because_nobody_knows_of_its_first(
    recorded: bool, server: Backend, site: Site
) -> None:
    """Its first run died with its worker. That the second one was cut cleanly says nothing of the first one.

    What another step records in between changes nothing.
    """
    async with run_caller(server) as flows:
        site.hold("wrap")
        site.hold("pick")
        site.begin()
        handle = await flows.execute(flow_app.local_order, flow_app.Order(7))
        await site.wait_began("pick", "wrap")
        site.kill()
        if recorded:
            site.release("pick")
        async with site.supervised():
            await site.wait_began("wrap", "wrap")
            if recorded:
                await wait_state(handle, "pick", "completed")
            assert await handle.cancel("no more")
            heard = await heard_of(handle)
        assert isinstance(heard, FlowCancelled)
        states = {name: step.state for name, step in (await handle.report()).steps.items()}
        assert states["wrap"] == "unknown"
        assert states["pick"] == ("completed" if recorded else "unknown")
        assert heard.rollback == "incomplete"
        named = sorted(each.step for each in heard.rollback_errors)
        assert named == (["wrap"] if recorded else ["pick", "wrap"])
        await site.judge(flows, handle, heard)


@pytest.mark.long
async def test_a_step_that_was_cut_and_whose_second_run_died_is_unknown(server: Backend, site: Site) -> None:
    """The first worker stopped and recorded that it cut the step; the second one died in it."""
    async with run_caller(server) as flows:
        site.hold("charge")
        site.begin(grace="200ms")
        handle = await flows.execute(flow_app.local_order, flow_app.Order(7))
        await site.wait_began("charge")
        await site.stop()
        site.start_other()
        await site.wait_began("charge", "charge")
        site.kill()
        assert await handle.cancel("no more")
        async with site.supervised():
            heard = await heard_of(handle)
        await check_unknown(site, flows, handle, heard, "charge")


async def test_siblings_that_are_active_at_a_cancel_are_cut_and_those_that_completed_undone(
    server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        for step in ("m3", "m8"):
            site.hold(step)
        site.begin()
        handle = await flows.execute(flow_app.local_wide, flow_app.Order(7))
        done = [f"m{n}" for n in range(12) if n not in (3, 8)]
        for step in done:
            await wait_state(handle, step, "completed")
        await site.wait_began("m3", "m8")
        assert await handle.cancel("no more")
        heard = await heard_of(handle)
        assert isinstance(heard, FlowCancelled)
        assert heard.rollback == "complete"
        report = await handle.report()
        assert [each.step for each in report.rollbacks] == report.order[::-1]
        assert sorted(report.order) == sorted(done)
        assert {report.steps[step].state for step in ("m3", "m8")} == {"cancelled"}
        ledger = await site.judge(flows, handle, heard)
        assert ledger.repeated(handle.id, "began") == []
    assert {each.pid for each in journal.read()} == {site.supervisor.current.pid}


async def test_a_step_that_kills_its_process_each_time_fails_its_flow_which_is_undone(
    server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.local_order, flow_app.Order(7, poison="charge"))
        site.begin(max_stalls=2)
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, StepError)
        assert (heard.step, type(heard.error)) == ("charge", StalledError)
        report = await handle.report()
        assert report.steps["charge"].state == "unknown"
        assert [each.step for each in report.rollbacks] == report.order[::-1]
        assert sorted(report.order) == ["pick", "reserve", "wrap"]
        assert heard.rollback == "incomplete", "nobody knows what `charge` did"
        assert [each.step for each in heard.rollback_errors] == ["charge"]
        await site.judge(flows, handle, heard)
    times = Counter(each.payload for each in journal.read("began"))
    assert times == {"reserve": 1, "pick": 1, "wrap": 1, "charge": 3}


@pytest.mark.parametrize("has_recorded", [False, True])
async def test_the_rollback_of_a_first_step_that_wants_it_runs_although_its_worker_died(
    has_recorded: bool, server: Backend, site: Site, journal: Journal
) -> None:
    """Nothing may be recorded of the flow but its stop, and the first step may have taken effect."""
    async with run_caller(server) as flows:
        held = "ship" if has_recorded else "reserve"
        site.hold(held)
        site.begin()
        handle = await flows.execute(flow_app.local_first, flow_app.Order(7))
        await site.wait_began(held)
        site.kill()
        assert await handle.cancel("no more")
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, FlowCancelled)
        assert (heard.rollback, heard.rollback_errors) == ("complete", ())
        report = await handle.report()
        assert report.steps["reserve"].state == ("completed" if has_recorded else "unknown")
        assert [(each.step, each.error) for each in report.rollbacks] == [("reserve", "")]
        assert [each.payload for each in journal.read("undid")] == ["reserve"]
        await site.judge(flows, handle, heard)
