"""A server whose clock is set an hour forward and back, under load, while a worker dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import last, until
from harness.journal import Journal
from harness.load import Load
from harness.programs import Program
from harness.set_clock import ServerClock

from eventbus import EventProvider, ResponseTimeout

Run = Callable[..., Program]
Gates = Callable[[str], None]

LEASE = 1.0
HOUR = 3600.0
SOON = 300.0
"""Within which a lease is rescued: two of them and a look, and much more for a machine that has other things
to do.
"""
KEPT = {"lease": LEASE, "keep_completed": "100000,7 days"}
"""For stored expiry times, a step forward is like time passing."""


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[ServerClock]:
    clock = ServerClock(tmp_path)
    yield clock
    clock.close()


@pytest.fixture
def server(make_server: Callable[..., Backend], clock: ServerClock) -> Backend:
    server = make_server(environment=clock.environment)
    for off in (-HOUR, 0):
        clock.set(server, off)
    return server


class _Site:
    """Workers that hold jobs behind a gate while the clock is set."""

    def __init__(self, server: Backend, start_worker: Run, journal: Journal) -> None:
        self.journal = journal
        self.workers = [start_worker(server, **KEPT) for _ in range(3)]

    def story(self) -> str:
        return "".join(each.story() for each in self.workers)

    def held_by(self, worker: Program) -> set[str]:
        began = self.journal.read("began")
        return {each.job for each in began if each.pid == worker.pid and each.payload == {"gate": "open"}}

    async def hold(self, provider: EventProvider, count: int) -> list[str]:
        """Emit jobs that wait for the gate, one after the other, so that each worker gets some."""
        jobs: list[str] = []
        for _ in range(count):
            emission = provider.emit("hold", {"gate": "open"}, reply=False)
            await emission
            jobs.append(emission.job_id)
        await until(
            "all run",
            lambda: sum(len(self.held_by(each)) for each in self.workers) == count,
            story=self.story,
        )
        return jobs

    async def kill_one(self) -> set[str]:
        """Kill a worker that holds jobs; return these jobs."""
        worker = max(self.workers, key=lambda each: len(self.held_by(each)))
        await asyncio.to_thread(worker.kill)
        self.workers.remove(worker)
        assert any(self.held_by(each) for each in self.workers), "others hold something too"
        return self.held_by(worker)

    async def wait_rescued(self, jobs: set[str]) -> None:
        await until(
            "what the killed worker held runs again",
            lambda: {job for job, runs in self.journal.runs().items() if runs == 2} >= jobs,
            story=self.story,
        )


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(HOUR, id="forward and back"),
        pytest.param(-HOUR, id="back and forward", marks=pytest.mark.long),
    ],
)
async def test_a_step_of_the_servers_clock_stops_no_rescue_and_loses_nothing(
    first: float, server: Backend, clock: ServerClock, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    site = _Site(server, start_worker, journal)
    async with EventProvider(server.url, lease=LEASE) as provider:
        load = Load(provider, loops=5, reply_timeout=3)
        await load.wait_answered(100, story=site.story)
        held = await site.hold(provider, 60)

        clock.set(server, first)
        await last(0.7 * LEASE)  # so that leases are renewed at the other time
        given = await site.kill_one()
        clock.set(server, 0)
        await site.wait_rescued(given)
        await last(2 * LEASE)  # when who lives could lose a lease
        runs = journal.runs()
        assert {job for job in held if runs[job] > 1} == given, "nobody else lost a lease"

        began = time.monotonic()
        late = provider.emit_many("work", [{"n": n} for n in range(20)], delay="1s", reply_timeout=SOON)
        again = provider.emit("flaky", {"good": 3}, reply_timeout=SOON)
        ran = [int((await each)["by"].partition("-")[2]) / 1e9 - began for each in late]
        assert min(ran) > 0.99, "seconds after it was emitted; one clock measures in all processes"
        assert (await again)["attempt"] == 3
        await load.wait_answered(100, story=site.story)
        await load.end()
        gates("open")
        assert [(await provider.result(job, reply_timeout=300))["gate"] for job in held] == ["open"] * 60

    assert [error for error in load.errors() if not isinstance(error, ResponseTimeout)] == []
    audit = Audit(server)
    assert audit.problems == []
    assert audit.left_open() == {}
    ended = {*held, *(each.job_id for each in (*late, again)), *(each.job for each in load.answers)}
    assert set(audit.jobs) == ended
    assert {record.state for record in audit.jobs.values()} == {"completed"}
    assert {job for job in held if audit.jobs[job].stalls} == given
    assert max(record.stalls for record in audit.jobs.values()) == 1
    for job, result in load.results().items():
        assert result == msgspec.json.decode(audit.jobs[job].text), (
            "heard another result than the recorded one"
        )
    for worker in site.workers:
        assert worker.complaints() == []


async def test_what_was_delayed_while_the_clock_was_ahead_is_late_by_the_step_and_not_lost(
    server: Backend, clock: ServerClock, start_worker: Run
) -> None:
    worker = start_worker(server, **KEPT)
    async with EventProvider(server.url) as provider:
        clock.set(server, HOUR)
        ahead = provider.emit("work", {"n": 1}, delay="2s")
        await ahead.enqueued()
        clock.set(server, 0)
        right = provider.emit("work", {"n": 2}, delay="1s", reply=False)
        await right
        await until(
            "it has run", lambda: Audit(server).jobs[right.job_id].state == "completed", story=worker.story
        )
        (job,) = Audit(server).members("delayed", "event.work")
        assert job == ahead.job_id
        due = float(server.command("ZSCORE", "eb:2:{0}:delayed:event.work", job)) / 1000
        assert HOUR - 300 < due - time.time() < HOUR + 2
        clock.set(server, HOUR)
        assert (await provider.result(job, reply_timeout=300))["n"] == 1
    assert worker.complaints() == []
