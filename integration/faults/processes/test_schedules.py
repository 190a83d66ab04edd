"""Schedules while workers start, are killed, and have wrong clocks: each slot makes one job."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When

from eventbus import EventProvider

Run = Callable[..., Program]

_EVERY = 100
COUNT, EVERY_MS = 5, 500  # of `apps/schedule_app.py`


@pytest.mark.long
async def test_each_slot_makes_one_job_while_workers_are_killed_again_and_again(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    rng = random.Random(7)
    workers = [start_worker(server, lease="1500ms") for _ in range(3)]
    async with EventProvider(server.url) as provider:
        schedule = await provider.schedules.add(
            "work",
            id="often",
            every=timedelta(milliseconds=_EVERY),
            payload={"n": 1},
            overlap="allow",
            catch_up="all",
        )
        for _ in range(5):
            await asyncio.sleep(rng.uniform(0.3, 0.9))  # firings go on meanwhile
            workers.pop(0).kill()
            workers.append(start_worker(server, lease="1500ms"))
        before = len(journal.runs())
        await until("slots go on", lambda: len(journal.runs()) >= before + 10)
        await schedule.pause("the test ends")
        report = await schedule.report()
        await until("all have run", lambda: len(journal.runs()) == report.fired)
        slots = sorted(int(job.rpartition(".")[2]) for job in journal.runs())
        first, last = slots[0], report.last
        assert slots == list(range(first, last + 1, _EVERY))
        since, until_then = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (first, last))
        assert len(await schedule.backfill(since, until_then)) == len(slots)  # meets what is there
        await asyncio.sleep(0.3)
        assert len(journal.runs()) == len(slots)
        await schedule.remove()


def _slots(journal: Journal) -> dict[str, list[int]]:
    """The slots of the jobs that ran, by their schedules; a slot that ran as two jobs stands there twice."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for job in journal.runs():
        schedule, _, rest = job.partition("~")
        found[schedule].append(int(rest.rpartition(".")[2]))
    return {schedule: sorted(slots) for schedule, slots in found.items()}


def _check(slots: list[int], every: int) -> None:
    assert slots == list(range(slots[0], slots[-1] + 1, every))


async def test_many_processes_that_declare_the_same_schedules_at_once_make_each_once(
    server: Backend, run: Run, journal: Journal
) -> None:
    programs = [run("worker", "apps.schedule_app:provider", url=server.url) for _ in range(6)]
    for program in programs:
        program.wait_logged("worker ready")
    async with EventProvider(server.url) as provider:
        await until("all fire", lambda: len(journal.runs()) >= 8 * COUNT, story=programs[0].story)
        later = [run("worker", "apps.schedule_app:provider", url=server.url) for _ in range(3)]
        for program in later:
            program.wait_logged("worker ready")
        await until("slots go on", lambda: len(journal.runs()) >= 16 * COUNT, story=later[0].story)
        for report in await provider.schedules.list():
            await provider.schedules.get(report.id).pause("the test ends")
        reports = await provider.schedules.list()
        total = sum(report.fired for report in reports)
        await until("all have run", lambda: len(journal.runs()) == total, story=later[0].story)
        for report in reports:
            await provider.schedules.remove(report.id)
    found = _slots(journal)
    assert sorted(found) == [f"s{number}" for number in range(COUNT)]
    for slots in found.values():
        _check(slots, EVERY_MS)
    definitions = {job.rpartition(".")[0] for job in journal.runs()}
    assert len(definitions) == COUNT, "one definition of each"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_is_killed_in_the_call_that_fires_loses_and_doubles_no_slot(
    when: When, server: Backend, proxy: Proxy, start_behind: Run, start_worker: Run, journal: Journal
) -> None:
    doomed = start_behind(lease="1500ms")
    async with EventProvider(server.url) as provider:
        schedule = await provider.schedules.add(
            "work", id="s", every="300ms", payload={"n": 1}, overlap="allow", catch_up="all"
        )
        await until("it fires", lambda: len(journal.runs()) >= 2, story=doomed.story)
        proxy.strike("fire", when, doomed.kill)
        await until("it was killed", lambda: doomed.has_ended, story=doomed.story)
        other = start_worker(server, lease="1500ms")
        before = len(journal.runs())
        await until("slots go on", lambda: len(journal.runs()) >= before + 10, story=other.story)
        await schedule.pause("the test ends")
        report = await schedule.report()
        await until("all have run", lambda: len(journal.runs()) == report.fired, story=other.story)
        await schedule.remove()
        _check(_slots(journal)["s"], 300)
        assert _slots(journal)["s"][-1] == report.last


async def test_workers_whose_clocks_are_an_hour_wrong_fire_each_slot_in_time(
    server: Backend, run: Run, journal: Journal
) -> None:
    wrong = [
        run(str(off), "worker", "apps.event_app:provider", module="apps.wrong_clock", url=server.url)
        for off in (3600.0, -3600.0)
    ]
    for program in wrong:
        program.wait_logged("worker ready")
    async with EventProvider(server.url) as provider:
        schedule = await provider.schedules.add(
            "work", id="s", every="300ms", payload={"n": 1}, overlap="allow", catch_up="all"
        )
        begun = (await schedule.report()).next
        await until("slots fire", lambda: len(journal.runs()) >= 10, story=wrong[0].story)
        await schedule.pause("the test ends")
        report = await schedule.report()
        await until("all have run", lambda: len(journal.runs()) == report.fired, story=wrong[0].story)
        await schedule.remove()
        slots = _slots(journal)["s"]
        _check(slots, 300)
        assert slots[0] == begun
        assert report.last <= datetime.now(UTC).timestamp() * 1000, "none before its time"
        assert report.missed == 0
