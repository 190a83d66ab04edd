"""Workers of local flows that are told to stop, or that sleep longer than their lease."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from apps import flow_app
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.sites import Site, heard_of, run_caller, wait_state

from workflows import FlowCancelled

pytestmark = pytest.mark.servers("one")

EVERY = ["reserve", "pick", "wrap", "charge", "ship"]


def done(journal: Journal, what: str = "did") -> dict[str, list[int]]:
    """Return step -> the processes that did it."""
    found: dict[str, list[int]] = {}
    for each in journal.read(what):
        found.setdefault(each.payload, []).append(each.pid)
    return found


async def test_a_worker_that_is_told_to_stop_ends_the_step_and_another_one_goes_on(
    server: Backend, site: Site, journal: Journal
) -> None:
    """No further step begins in the first one, and nothing runs twice."""
    async with run_caller(server) as flows:
        site.hold("wrap")
        site.begin(grace="20s")
        first = site.supervisor.current
        handle = await flows.execute(flow_app.local_order, flow_app.Order(7))
        await site.wait_began("wrap")
        await wait_state(handle, "pick", "completed")
        first.send(signal.SIGTERM)
        first.wait_logged("stopping")
        second = site.start_other()
        second.wait_logged("worker ready")
        site.release("wrap")
        heard = await heard_of(handle)
        assert heard == "order 7"
        await until("it stopped", lambda: first.has_ended, story=first.story)
        assert first.wait_ended() == 0
        await site.judge(flows, handle, heard)
    assert done(journal) == {step: [first.pid] for step in EVERY[:3]} | {
        step: [second.pid] for step in EVERY[3:]
    }
    assert done(journal, "began") == done(journal)
    assert (first.complaints(), second.complaints()) == ([], [])


@pytest.mark.long
async def test_a_step_that_outlasts_the_grace_is_cut_and_runs_again_and_recorded_ones_do_not(
    server: Backend, site: Site, journal: Journal
) -> None:
    async with run_caller(server) as flows:
        site.hold("wrap")
        site.begin(grace="200ms")
        first = site.supervisor.current
        handle = await flows.execute(flow_app.local_order, flow_app.Order(7))
        await site.wait_began("wrap")
        await wait_state(handle, "pick", "completed")
        await site.stop()
        site.release("wrap")
        second = site.start_other()
        heard = await heard_of(handle)
        assert heard == "order 7"
        await site.judge(flows, handle, heard)
    assert Counter(each.payload for each in journal.read("began")) == Counter([*EVERY, "wrap"])
    assert done(journal) == {step: [first.pid] for step in ("reserve", "pick")} | {
        step: [second.pid] for step in EVERY[2:]
    }
    assert (first.complaints(), second.complaints()) == ([], [])


@pytest.mark.parametrize("ends", [pytest.param("completes", marks=pytest.mark.long), "is cancelled"])
async def test_a_worker_that_sleeps_longer_than_its_lease_records_nothing_any_more(
    ends: str, server: Backend, site: Site, journal: Journal
) -> None:
    """At most the step in question runs twice."""
    async with run_caller(server) as flows:
        site.hold("charge")
        site.begin()
        late = site.supervisor.current
        handle = await flows.execute(flow_app.local_order, flow_app.Order(7))
        await site.wait_began("charge")
        late.send(signal.SIGSTOP)
        second = site.start_other()
        await site.wait_began("charge", "charge")
        if ends == "completes":
            site.release("charge")
            heard = await heard_of(handle)
            assert heard == "order 7"
        else:
            assert await handle.cancel("no more")
            heard = await heard_of(handle)
            assert isinstance(heard, FlowCancelled)
            assert (await handle.report()).steps["charge"].state == "unknown", "it may still run there"
        recorded = await flows.provider.jobs.journal(handle.id)
        late.send(signal.SIGCONT)
        await until(
            "the late one ended its step, or heard that it has lost its lease",
            lambda: (
                late.pid in done(journal).get("charge", ()) or late.logged("lease lost, handler cancelled")
            ),
            story=late.story,
        )
        await site.stop()
        late.send(signal.SIGTERM)
        await until("the late one stopped", lambda: late.has_ended, story=late.story)
        assert await flows.provider.jobs.journal(handle.id) == recorded
        await site.judge(flows, handle, heard, late.pid, second.pid)  # either may have done it last
    assert set(done(journal)) == set(EVERY if ends == "completes" else EVERY[:3])
    assert all(len(pids) == 1 for step, pids in done(journal).items() if step != "charge")
    began = Counter(each.payload for each in journal.read("began"))
    assert began == Counter([*EVERY[:4], "charge", *(["ship"] if ends == "completes" else [])])
    assert {each.pid for each in journal.read() if each.payload == "ship"} <= {second.pid}
    assert (late.complaints(), second.complaints()) == ([], [])
