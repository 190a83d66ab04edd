"""Workers whose clocks are an hour wrong: leases and due times use the server's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from checks.audit import reconcile
from harness.backends import Backend
from harness.conditions import last, until
from harness.journal import Journal
from harness.programs import Program

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

LEASE = 2.0
HOUR = 3600.0

pytestmark = pytest.mark.servers("one")


@pytest.fixture
def start_wrong(run: Run, server: Backend) -> Callable[[float], Program]:
    """Start a worker whose clock is off by `off` seconds."""

    def start(off: float) -> Program:
        words = (str(off), "worker", "apps.event_app:provider")
        worker = run(*words, module="apps.wrong_clock", url=server.url, lease=LEASE)
        worker.wait_logged("worker ready")
        return worker

    return start


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_lease_is_neither_ended_early_nor_late(
    off: float, server: Backend, start_wrong: Callable[[float], Program], gates: Gates, journal: Journal
) -> None:
    holder = start_wrong(off)
    async with EventProvider(server.url) as provider:
        wrong = provider.emit("clock")
        assert abs(await wrong - time.time() - off) < HOUR / 2, "its clock is wrong indeed"
        emissions = provider.emit_many("hold", [{"gate": "open"}] * 10)
        await until("all run", lambda: len(journal.read("began")) == 10, story=holder.story)
        other = start_wrong(-off)
        await last(3 * LEASE)
        assert len(journal.read("began")) == 10, "nobody lost a lease early"
        holder.kill()
        killed = time.monotonic()
        await until("all run again", lambda: len(journal.read("began")) == 20, story=other.story)
        assert time.monotonic() - killed > 0.5 * LEASE, "what was left of the lease"
        gates("open")
        heard = {each.job_id: await each for each in emissions}
    heard[wrong.job_id] = await wrong
    audit = reconcile(server, heard)
    assert {audit.jobs[each.job_id].stalls for each in emissions} == {1}
    assert {journal.runs()[each.job_id] for each in emissions} == {2}
    assert other.complaints() == []


async def test_due_times_and_retries_are_right(
    server: Backend, start_wrong: Callable[[float], Program], journal: Journal
) -> None:
    workers = [start_wrong(HOUR), start_wrong(-HOUR)]
    async with EventProvider(server.url) as provider:
        began = time.monotonic()
        emissions = provider.emit_many("work", [{"n": n} for n in range(20)], delay="1s")
        at = datetime.now(UTC) + timedelta(seconds=1)
        emissions += [provider.emit("work", {"n": n}, at=at) for n in range(20)]
        again = provider.emit("flaky", {"good": 3})
        first = asyncio.gather(*emissions)
        await until(
            "the first is done", lambda: any(each.done() for each in emissions), story=workers[0].story
        )
        assert time.monotonic() - began > 0.99, "none was early"
        await first
        heard = {each.job_id: await each for each in (*emissions, again)}
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert {journal.runs()[each.job_id] for each in emissions} == {1}
    assert [worker.complaints() for worker in workers] == [[], []]
