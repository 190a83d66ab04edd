"""Each crash window by its name: the fault, the step at which it happens, and what must then hold.

Steps are the calls that move a job: `add` by its emitter; `claim`, `settle` and `renew` by its
worker. Each of these faults happens once at each step:
- `fail-before`, `fail-after`: the connection breaks before the call reaches the server, or after the
  server has executed it and before the client has the answer;
- `gone-before`, `no-answer`: the same, but the connection stays open and carries nothing any more;
- `die-before`, `die-after`: the process that made the call is killed at that moment.

The state is then that of before the call or that of after it, never one in between, and work goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from checks.audit import Audit, JobRecord, reconcile
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When

from eventbus import Emission, EventProvider, UnknownJob

Run = Callable[..., Program]
Gates = Callable[[str], None]

pytestmark = pytest.mark.servers("one")

JOBS = 20
SHORT = "1s"  # a short lease if the test waits for a rescue; otherwise the default


class Point(NamedTuple):
    """One crash window: the step and the fault."""

    step: str
    what: str

    @property
    def when(self) -> When:
        return "before" if self.what in ("fail-before", "gone-before", "die-before") else "after"

    def strike(self, proxy: Proxy, kill: Callable[[], object] | None = None) -> None:
        """Ask for it. `kill` ends the process of the connection."""
        if self.what.startswith("die"):
            assert kill is not None
            proxy.strike(self.step, self.when, kill)
        else:
            proxy.strike(self.step, self.when, "break" if self.what.startswith("fail") else "hush")


LOSSES = ("fail-before", "fail-after", "gone-before", "no-answer")
DEATHS = ("die-before", "die-after")


def points(*steps: str, what: tuple[str, ...]) -> pytest.MarkDecorator:
    """Where time is short, a connection that breaks repeats what a silent one shows, and one that is silent
    before the call what a death before it shows; of a renewal it is the other way round.
    """
    found = [
        pytest.param(
            Point(step, each),
            id=f"{step}-{each}",
            marks=[pytest.mark.long] if each.startswith("fail") or each == twin else [],
        )
        for step in steps
        for twin in ["no-answer" if step == "renew" else "gone-before"]
        for each in what
    ]
    return pytest.mark.parametrize("point", found)


async def emit_waiting(provider: EventProvider, event: str) -> list[Emission[object]]:
    """Jobs that wait in the server before any worker is there: the first claim gets all of them."""
    emissions = provider.emit_many(event, [{"n": n, "gate": "open"} for n in range(JOBS)])
    for each in emissions:
        await each.enqueued()
    return emissions


def serve(run: Run, proxy: Proxy, **settings: object) -> Program:
    return run("worker", "apps.event_app:provider", url=proxy.url, **settings)


@points("claim", "settle", what=LOSSES)
async def test_a_worker_whose_call_is_lost_repeats_it_without_harm(
    point: Point, server: Backend, proxy: Proxy, run: Run, journal: Journal
) -> None:
    async with EventProvider(server.url) as provider:
        emissions = await emit_waiting(provider, "work")
        point.strike(proxy)
        worker = serve(run, proxy)
        await until("the fault was done", lambda: proxy.cuts[point.step] == 1, story=worker.story)
        heard = {each.job_id: await each for each in emissions}
    check_each_ran_once(server, heard, journal)
    assert worker.complaints() == []


@points("renew", what=LOSSES)
async def test_a_worker_whose_renewal_is_lost_keeps_its_leases(
    point: Point, server: Backend, proxy: Proxy, run: Run, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    async with EventProvider(server.url) as provider:
        emissions = await emit_waiting(provider, "hold")
        worker = serve(run, proxy)
        await until("all run", lambda: len(journal.read("began")) == JOBS, story=worker.story)
        start_worker(server)  # one that would rescue them
        point.strike(proxy)
        await until("the fault was done", lambda: proxy.cuts["renew"] == 1, story=worker.story)
        renewals = proxy.calls["renew"]
        await until("it was made good", lambda: proxy.calls["renew"] >= renewals + 2, story=worker.story)
        gates("open")
        heard = {each.job_id: await each for each in emissions}
    check_each_ran_once(server, heard, journal)
    assert worker.complaints() == []


@points("add", what=LOSSES)
async def test_an_emitter_whose_add_is_lost_repeats_it_without_harm(
    point: Point, server: Backend, proxy: Proxy, start_worker: Run, journal: Journal
) -> None:
    worker = start_worker(server)
    async with EventProvider(proxy.url) as provider:
        point.strike(proxy)
        emissions = provider.emit_many("work", [{"n": n} for n in range(JOBS)])
        heard = {each.job_id: await each for each in emissions}
        assert proxy.cuts["add"] == 1
    check_each_ran_once(server, heard, journal)
    assert worker.complaints() == []


@points("add", what=DEATHS)
async def test_the_jobs_of_an_emitter_that_dies_at_its_add_are_all_there_or_none(
    point: Point, server: Backend, proxy: Proxy, start_worker: Run, run: Run, journal: Journal
) -> None:
    start_worker(server)
    emitter: list[Program] = []
    point.strike(proxy, kill=lambda: [each.kill() for each in emitter])
    emitter.append(run("work", '{"n":1}', str(JOBS), module="apps.held_emitter", url=proxy.url))
    await until("it is dead", lambda: emitter[0].has_ended and proxy.cuts["add"], story=emitter[0].story)
    (ids,) = emitter[0].lines()
    async with EventProvider(server.url) as provider:
        if point.when == "after":
            heard = {job: await provider.result(job, reply_timeout="20s") for job in ids}
            check_each_ran_once(server, heard, journal)
            return
        for job in ids:
            with pytest.raises(UnknownJob):
                await provider.result(job, reply_timeout="5s")
    assert (Audit(server).jobs, journal.read()) == ({}, [])


@points("claim", "settle", "renew", what=DEATHS)
async def test_the_jobs_of_a_worker_that_dies_at_a_call_end_at_another_one(
    point: Point, server: Backend, proxy: Proxy, run: Run, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    async with EventProvider(server.url) as provider:
        emissions = await emit_waiting(provider, "hold" if point.step == "renew" else "work")
        first: list[Program] = []
        point.strike(proxy, kill=lambda: [each.kill() for each in first])
        first.append(serve(run, proxy, lease=SHORT))
        await until("it is dead", lambda: first[0].has_ended and proxy.cuts[point.step], story=first[0].story)
        as_it_was = Audit(server)
        assert as_it_was.problems == []
        start_worker(server, lease=SHORT)
        gates("open")
        heard = {each.job_id: await each for each in emissions}
    audit = reconcile(server, heard, journal=journal)
    runs = journal.runs()
    for job, before in as_it_was.jobs.items():
        check_went_on(point, before, audit.jobs[job], runs[job])


def check_went_on(point: Point, before: JobRecord, after: JobRecord, runs: int) -> None:
    """`before` is how the dead worker left the job, `after` how it ended."""
    if point == ("claim", "die-before"):
        assert (before.state, after.stalls, runs) == ("waiting", 0, 1), "it had not claimed anything"
    elif point == ("claim", "die-after"):
        assert (before.state, after.stalls, runs) == ("active", 1, 1), "it had not heard of what it claimed"
    elif before.state == "completed":
        assert point == ("settle", "die-after")
        assert (after, runs) == (before, 1), "what it had settled stays as it is"
    else:
        assert before.state == "active"
        assert after.stalls == 1
        assert 1 <= runs <= 2, "once by the dead one, if it came to that, and once by the other one"


def check_each_ran_once(server: Backend, heard: dict[str, object], journal: Journal) -> None:
    assert len(heard) == JOBS
    audit = reconcile(server, heard, journal=journal)
    assert {(record.attempts, record.stalls) for record in audit.jobs.values()} == {(0, 0)}
    assert set(journal.runs().values()) == {1}
