"""A job that kills its process does not harm the jobs beside it, and neither does a fleet that is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.supervisor import Supervisor

from eventbus import EventProvider, StalledError

Run = Callable[..., Program]
Gates = Callable[[str], None]


async def test_the_neighbours_of_a_poison_complete(server: Backend, run: Run) -> None:
    supervisor = Supervisor(
        lambda: run("worker", "apps.event_app:provider", url=server.url, lease="1500ms", max_stalls=3)
    )
    async with EventProvider(server.url, reply_timeout=300) as provider:
        poison = provider.emit("poison", {"is_gated": False})
        others = provider.emit_many("work", [{"n": n} for n in range(60)])

        def is_over() -> bool:
            supervisor.look()
            return all(each.done() for each in (poison, *others))

        await until("all have ended", is_over, story=supervisor.story)
        states = Counter(Audit(server).jobs[each.job_id].state for each in others)
        assert states == Counter(completed=60)
        assert Audit(server).jobs[poison.job_id].state == "failed"


@pytest.mark.long
async def test_a_poison_among_long_jobs_fails_and_they_run_on(
    server: Backend, run: Run, gates: Gates, journal: Journal
) -> None:
    """Each death takes all of them along, until the poison is among the few that are watched, and
    then alone.
    """
    supervisor = Supervisor(
        lambda: run("worker", "apps.event_app:provider", url=server.url, lease="1500ms", max_stalls=3)
    )
    async with EventProvider(server.url, reply_timeout=300) as provider:
        others = provider.emit_many("hold", [{"gate": "open"} for _ in range(60)])
        poison = provider.emit("poison", {"is_gated": False})
        await until("it ended", lambda: supervisor.look() or poison.done(), story=supervisor.story)
        with pytest.raises(StalledError, match="this job alone may be the cause"):
            await poison
        await until("all run", lambda: Audit(server).left_open() == {"active": 60}, story=supervisor.story)
        gates("open")
        for each in others:
            await each
        await until("all ended", lambda: Audit(server).left_open() == {})
    jobs = Audit(server).jobs
    assert Counter(jobs[each.job_id].state for each in others) == Counter(completed=60)
    assert jobs[poison.job_id].stalls == supervisor.deaths
    assert journal.runs()[poison.job_id] <= 7


async def test_long_jobs_whose_fleet_was_killed_twice_all_run_again_at_once(
    server: Backend, run: Run, gates: Gates, journal: Journal
) -> None:
    def start() -> Program:
        return run("worker", "apps.event_app:provider", url=server.url, lease="1s", max_stalls=3)

    fleet = [start(), start()]
    async with EventProvider(server.url, reply_timeout=300) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"} for _ in range(60)])
        for deaths in range(3):
            await until(
                "each runs",
                lambda runs=deaths + 1: Counter(journal.runs().values()) == {runs: 60},
                story=fleet[0].story,
            )
            if deaths < 2:
                for each in fleet:
                    each.kill()
                fleet = [start(), start()]
        gates("open")
        for each in emissions:
            await each
    assert {Audit(server).jobs[each.job_id].stalls for each in emissions} == {2}
