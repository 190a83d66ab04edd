"""Callers and workers that die while a flow starts or stops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from apps import flow_app
from checks.account import Account
from checks.audit import Audit
from checks.ledger import Ledger
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When
from harness.sites import LEASE, Site, heard_of, let_minutes_pass, run_caller

from eventbus import UnknownJob
from workflows import FlowCancelled, FlowTimeout

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")

KEY = "once"


async def kill_caller(run: Run, proxy: Proxy, when: When, where: str, *words: str) -> Program:
    """Run the calling program, and kill it at this call."""
    program: list[Program] = []
    proxy.strike(where, when, lambda: [each.kill() for each in program])
    program.append(run(*words, module="apps.caller", url=proxy.url))
    await until("it is dead", lambda: program[0].has_ended and proxy.cuts[where], story=program[0].story)
    return program[0]


@pytest.mark.parametrize(
    ("when", "where"), [pytest.param("after", "plant", marks=pytest.mark.long), ("before", "open")]
)
async def test_nothing_of_a_graph_runs_whose_caller_died_before_the_last_chunk(
    when: When, where: str, server: Backend, proxy: Proxy, run: Run, site: Site, journal: Journal
) -> None:
    await kill_caller(run, proxy, when, where, "execute", "wide", "{}", KEY)
    async with run_caller(server) as flows:
        (dead,) = [
            job for job, each in Audit(server).jobs.items() if job.startswith("wide") and not each.root
        ]
        assert (await flows.handle(dead).status()).state == "pending"
        site.begin()
        other = await flows.execute(flow_app.order, flow_app.Order(7))
        assert await other.result() == "order 7"  # so the worker has looked for work
        assert {each.job for each in journal.read()} == {other.id}
        left = let_minutes_pass(server, f"unopened:{dead}")
        assert 0 < left <= 60, "a minute after its last chunk it goes"
        error = await heard_of(flows.handle(dead))
        assert isinstance(error, (FlowCancelled, UnknownJob))
        with pytest.raises(UnknownJob):
            await flows.handle(dead).status()
        await until("its members went by chores", lambda: Audit(server).left_open() == {})
        audit = Audit(server)
        assert (audit.problems, audit.left_open()) == ([], {})
        assert [job for job in audit.jobs if job.startswith("wide")] == []
        again = await flows.execute(flow_app.wide, flow_app.Order(), idempotency_key=KEY)
        assert again.id != dead, "the key is free"
        assert await again.result() is None


@pytest.mark.parametrize(
    ("when", "where"), [("after", "plant"), pytest.param("before", "open", marks=pytest.mark.long)]
)
async def test_the_next_caller_of_a_key_adds_its_flow_where_the_last_one_died_half_way(
    when: When, where: str, server: Backend, proxy: Proxy, run: Run, site: Site
) -> None:
    await kill_caller(run, proxy, when, where, "execute", "wide", "{}", KEY)
    site.begin()
    async with run_caller(server) as flows:
        flow = await flows.execute(flow_app.wide, flow_app.Order(), idempotency_key=KEY)
        assert await flow.result() is None
    await until("all of the other one is gone", lambda: Audit(server).left_open() == {})
    audit = Audit(server)
    assert audit.problems == []
    assert {each.root for each in audit.jobs.values()} <= {"", flow.id}


async def test_a_graph_runs_whose_caller_died_after_the_last_chunk(
    server: Backend, proxy: Proxy, run: Run, site: Site, journal: Journal
) -> None:
    await kill_caller(run, proxy, "after", "open", "execute", "wide", "{}", KEY)
    site.begin()
    async with run_caller(server) as flows:
        handle = await flows.execute(flow_app.wide, flow_app.Order(), idempotency_key=KEY)
        assert await handle.result() is None
        report = await handle.report()
        assert len(report.order) == flow_app.WIDE
        ledger = Ledger(journal, ())
        assert ledger.flaws(Account(flow_app.wide, report, {})) == []
        assert ledger.repeated(handle.id, "did") == []
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_cancel_whose_caller_dies_at_it_is_made_or_not(
    when: When, server: Backend, proxy: Proxy, run: Run, site: Site
) -> None:
    async with run_caller(server) as flows:
        site.hold("ship")
        site.begin()
        handle = await flows.execute(flow_app.order, flow_app.Order(7))
        await site.wait_began("ship")
        await kill_caller(run, proxy, when, "cancel", "cancel", handle.id)
        if when == "before":
            site.release("ship")
        heard = await heard_of(handle)
        assert isinstance(heard, str if when == "before" else FlowCancelled)
        await site.judge(flows, handle, heard)


@pytest.mark.parametrize("cause", ["cancelled", pytest.param("timeout", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("step", "verdict"), [("charge", "incomplete"), pytest.param("ship", "complete", marks=pytest.mark.long)]
)
async def test_a_step_whose_worker_is_dead_when_its_flow_is_stopped_is_named_as_unknown(
    step: str, verdict: str, cause: str, server: Backend, site: Site
) -> None:
    """It is unknown whether `charge` must be undone; `ship` has no rollback."""
    async with run_caller(server) as flows:
        site.hold(step)
        site.begin()
        handle = await flows.execute(
            flow_app.order, flow_app.Order(7), timeout="1h" if cause == "timeout" else None
        )
        await site.wait_began(step)
        site.kill()
        if cause == "cancelled":
            assert await handle.cancel("no more")
        else:
            assert let_minutes_pass(server, f"timeout:{handle.id}") > 3000
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, FlowCancelled if cause == "cancelled" else FlowTimeout)
        report = await handle.report()
        assert report.steps[step].state == "unknown"
        assert (heard.rollback, [each.step for each in heard.rollback_errors]) == (
            verdict,
            [step] if verdict == "incomplete" else [],
        )
        await site.judge(flows, handle, heard)


@pytest.mark.long
async def test_a_step_that_was_rescued_and_then_stopped_before_it_ran_again_is_unknown_too(
    server: Backend, site: Site, run: Run
) -> None:
    async with run_caller(server) as flows:
        site.hold("charge")
        site.begin()
        handle = await flows.execute(flow_app.order, flow_app.Order(7))
        await site.wait_began("charge")
        site.kill()
        rescuer = run("worker", "apps.event_app:provider", url=server.url, lease=LEASE)  # it knows no flows
        await until(
            "its lease ran out", lambda: rescuer.logged("job stalled, given back"), story=rescuer.story
        )
        assert await handle.cancel("no more")
        async with site.supervised():
            heard = await heard_of(handle)
        assert isinstance(heard, FlowCancelled)
        assert (await handle.report()).steps["charge"].state == "unknown"
        assert (heard.rollback, [each.step for each in heard.rollback_errors]) == ("incomplete", ["charge"])
        await site.judge(flows, handle, heard)
