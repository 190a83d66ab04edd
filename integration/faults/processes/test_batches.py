"""Batches whose worker is killed, whose answers are lost, or that have a job that kills its process."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from checks.audit import Audit, reconcile
from harness.backends import Backend
from harness.conditions import until
from harness.fleet import Fleet
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy
from harness.supervisor import Supervisor

from eventbus import EventProvider, StalledError

Run = Callable[..., Program]
Gates = Callable[[str], None]

_APP = "apps.handlers.batch_app:provider"


async def test_each_job_of_a_batch_is_rescued_when_its_worker_is_killed(
    server: Backend, run: Run, gates: Gates, journal: Journal
) -> None:
    def start() -> Program:
        worker = run("worker", _APP, url=server.url, lease="1500ms")
        worker.wait_logged("worker ready")
        return worker

    worker = start()
    async with EventProvider(server.url, reply_timeout=300) as provider:
        emissions = provider.emit_many("held", [{"n": n} for n in range(50)])
        await until("two calls hold them", lambda: len(journal.runs()) == 50, story=worker.story)
        worker.kill()
        worker = start()
        await until("all began again", lambda: set(journal.runs().values()) == {2}, story=worker.story)
        gates("open")
        assert await asyncio.gather(*emissions) == [{"n": n} for n in range(50)]
    jobs = Audit(server).jobs
    assert {(jobs[each.job_id].stalls, jobs[each.job_id].attempts) for each in emissions} == {(1, 0)}
    assert Counter(Counter(each.job for each in journal.read("ended")).values()) == {1: 50}


async def test_jobs_whose_worker_was_killed_while_they_waited_for_others_wait_no_more(
    server: Backend, run: Run, journal: Journal
) -> None:
    worker = run("worker", _APP, url=server.url, lease="1500ms")
    worker.wait_logged("worker ready")
    async with EventProvider(server.url, reply_timeout=300) as provider:
        emissions = provider.emit_many("rare", [{"n": n} for n in range(5)])
        await until("they wait", lambda: Audit(server).left_open() == {"active": 5}, story=worker.story)
        worker.kill()
        assert journal.runs() == {}, "they would wait for a minute"
        worker = run("worker", _APP, url=server.url, lease="1500ms")
        assert await asyncio.wait_for(asyncio.gather(*emissions), 240) == [{"n": n} for n in range(5)]
    jobs = Audit(server).jobs
    assert {(jobs[each.job_id].stalls, jobs[each.job_id].attempts) for each in emissions} == {(1, 0)}


@pytest.mark.long
async def test_jobs_in_batches_end_once_while_their_workers_are_killed(
    server: Backend, tmp_path: Path, journal: Journal
) -> None:
    rng = random.Random(5)
    fleet = Fleet(server.url, tmp_path, size=3, app=_APP, lease="1500ms", max_stalls=30)
    try:
        async with EventProvider(server.url, reply_timeout=300) as provider:
            emissions = provider.emit_many("many", [{"n": n, "takes": 0.5} for n in range(3000)])
            while fleet.kills < 6 and not all(each.done() for each in emissions):
                before = len(journal.read("ended"))
                await until(
                    "they go on",
                    lambda before=before: (
                        len(journal.read("ended")) > before + 100 or all(each.done() for each in emissions)
                    ),
                )
                fleet.kill(rng)
            results = await asyncio.gather(*emissions)
        assert results == [{"n": n} for n in range(3000)]
        assert fleet.kills >= 3
        assert set(fleet.end()) == {0}
        assert fleet.complaints() == []
    finally:
        fleet.close()
    heard = {each.job_id: result for each, result in zip(emissions, results, strict=True)}
    audit = reconcile(server, heard, journal=journal)
    assert {audit.jobs[job].state for job in heard} == {"completed"}
    assert max(audit.jobs[each.job_id].attempts for each in emissions) == 1, "a stall is no attempt"


@pytest.mark.long
async def test_a_poison_in_a_batch_fails_alone_and_its_neighbours_complete(
    server: Backend, run: Run, journal: Journal
) -> None:
    supervisor = Supervisor(lambda: run("worker", _APP, url=server.url, lease="1500ms", max_stalls=3))
    async with EventProvider(server.url, reply_timeout=300) as provider:
        others = provider.emit_many("many", [{"n": n} for n in range(30)])
        poison = provider.emit("many", {"n": 0, "kills": True})
        others += provider.emit_many("many", [{"n": n} for n in range(30, 60)])
        everything = [poison, *others]
        await until(
            "all ended",
            lambda: supervisor.look() or all(each.done() for each in everything),
            story=supervisor.story,
        )
        with pytest.raises(StalledError, match="this job alone may be the cause"):
            await poison
        assert await asyncio.gather(*others) == [{"n": n} for n in range(60)]
    jobs = Audit(server).jobs
    assert Counter(jobs[each.job_id].state for each in others) == Counter(completed=60)
    assert jobs[poison.job_id].stalls == supervisor.deaths
    assert journal.runs()[poison.job_id] <= 8


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_turn_whose_answer_is_lost_settles_each_job_of_a_batch_once(
    when: str, server: Backend, proxy: Proxy, run: Run, journal: Journal
) -> None:
    worker = run("worker", _APP, url=proxy.url)
    worker.wait_logged("worker ready")
    proxy.cut("turn", every=4, when=when)  # type: ignore[arg-type]
    async with EventProvider(server.url, reply_timeout=300) as provider:
        heard: dict[str, object] = {}
        first = 0
        while proxy.cuts["turn"] < 20:
            emissions = provider.emit_many("many", [{"n": n} for n in range(first, first + 100)])
            heard |= {each.job_id: await each for each in emissions}
            first += 100
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert sorted(result["n"] for result in heard.values()) == list(range(first))  # type: ignore[index]
    failed = {job for job, result in heard.items() if result["n"] % 7 == 3}  # type: ignore[index]
    assert journal.runs() == Counter({job: 2 if job in failed else 1 for job in heard})
    assert worker.complaints() == []
