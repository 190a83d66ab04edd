"""Each crash window of a job that records its stages in its journal and sleeps in the middle:
`examples/stages.py`.

Its worker is killed with SIGKILL at a named point, and another process goes on. A stage may happen twice only
if it died between the effect and the record. Effects are told by a file outside of the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from apps.stages_app import STAGES, outcome
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When
from harness.sites import LEASE

from eventbus import EventProvider
from eventbus.lowlevel import Emission, JobClient, Policy, Tree

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")

JOB = "report-7"
SLEEP = STAGES.index("approve")
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
RESULTS = ["collect of May", "render of May", "by Ada", "print of May", "mail of May"]


class Point(NamedTuple):
    """Where the worker dies, how many entries are recorded then, and the stage that happens twice by that."""

    when: str
    where: str
    recorded: int
    twice: str = ""

    def __str__(self) -> str:
        return f"{self.when}-{self.where.replace(' ', '-')}"

    @property
    def is_behind_sleep(self) -> bool:
        return self.recorded > SLEEP or self.where == f"append {SLEEP}"


def points() -> list[Point]:
    found: list[Point] = []
    for place, stage in enumerate(STAGES):
        is_work = place != SLEEP
        if is_work:
            found.append(Point("in", stage, place))
        else:
            found += [Point(when, f"suspended {JOB}", place) for when in ("before", "after")]
        found.append(Point("before", f"append {place}", place, stage if is_work else ""))
        found.append(Point("after", f"append {place}", place + 1))
    return found + [Point(when, f"completed {JOB}", len(STAGES)) for when in ("before", "after")]


async def add_report(jobs: JobClient, on: Policy = "fail") -> Emission[object]:
    report = jobs.add(Tree(JOB, "reports", "May", on=on), outcome)
    await report.enqueued()
    return report


async def approve(jobs: JobClient) -> None:
    await jobs.signal(JOB, "approved", '"by Ada"')


async def wait_asleep(server: Backend, worker: Program) -> None:
    await until(
        "the job sleeps", lambda: Audit(server).jobs[JOB].state == "waiting-children", story=worker.story
    )


def stages_of(entries: list[str]) -> list[str]:
    return [msgspec.json.decode(each)["stage"] for each in entries]


def check_recorded(server: Backend, entries: list[str]) -> None:
    """All is recorded once, and the signal is taken; nothing is left open."""
    assert [msgspec.json.decode(each) for each in entries] == [
        {"stage": stage, "result": result} for stage, result in zip(STAGES, RESULTS, strict=True)
    ]
    with server.client() as client:
        assert client.hgetall(f"eb:2:{{0}}:inbox:{JOB}") == {"#": "1", "#b": "0"}
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})


QUICK = (
    "in render",
    "before append 1",
    f"after append {SLEEP}",
    f"before suspended {JOB}",
    f"before completed {JOB}",
)


def is_long(point: Point) -> bool:
    """Whether it repeats another point at another stage, or on the other side of a call."""
    return f"{point.when} {point.where}" not in QUICK


@pytest.mark.parametrize("on", ["fail", pytest.param("wake", marks=pytest.mark.long)])  # two shapes of a root
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(each, id=str(each), marks=[pytest.mark.long] if is_long(each) else [])
        for each in points()
    ],
)
async def test_a_job_goes_on_behind_its_last_entry_whose_worker_dies_at_any_point(
    point: Point, on: Policy, server: Backend, proxy: Proxy, run: Run, journal: Journal, tmp_path: Path
) -> None:
    dead: list[Program] = []
    if point.when == "in":
        (tmp_path / f"die in {point.where}").touch()
    else:
        moment: When = "before" if point.when == "before" else "after"
        proxy.strike(point.where, moment, lambda: [each.kill() for each in dead])
    async with EventProvider(server.url, lease=LEASE) as provider:
        report = await add_report(provider.jobs, on)
        dead.append(run("worker", "apps.stages_app:provider", url=proxy.url, lease=LEASE))
        if point.is_behind_sleep:
            await wait_asleep(server, dead[0])
            await approve(provider.jobs)
        await until("it is dead", lambda: dead[0].has_ended, story=dead[0].story)
        assert stages_of(await provider.jobs.journal(JOB)) == list(STAGES[: point.recorded])
        before = journal.read("began")
        if not point.is_behind_sleep:
            await approve(provider.jobs)  # while no worker is there
        heir = run("worker", "apps.stages_app:provider", url=server.url, lease=LEASE)
        assert await report == RESULTS
        entries = await provider.jobs.journal(JOB)
    began = journal.read("began")[len(before) :]
    left = [stage for stage in STAGES[point.recorded :] if stage != "approve"]
    assert [each.payload for each in began] == left, "nothing that was recorded is done again"
    assert {each.pid for each in began} <= {heir.pid}
    times = Counter(each.payload for each in journal.read("did"))
    assert times == Counter([each for each in STAGES if each != "approve"]) + Counter(
        [point.twice] if point.twice else []
    )
    assert heir.complaints() == []
    check_recorded(server, entries)


async def test_a_signal_is_not_lost_that_was_sent_while_no_worker_was_there_and_the_server_died_then(
    make_server: Callable[..., Backend], run: Run, journal: Journal
) -> None:
    server = make_server(*DURABLE)
    worker = run("worker", "apps.stages_app:provider", url=server.url, lease=LEASE)
    async with EventProvider(server.url) as provider:
        await add_report(provider.jobs)
        await wait_asleep(server, worker)
    worker.kill()
    await restart(server)
    async with EventProvider(server.url) as provider:
        await approve(provider.jobs)
    await restart(server)
    async with EventProvider(server.url) as provider:
        heir = run("worker", "apps.stages_app:provider", url=server.url, lease=LEASE)
        assert await provider.jobs.result(JOB, outcome, 30) == RESULTS
        entries = await provider.jobs.journal(JOB)
    did = [(each.payload, each.pid) for each in journal.read("did")]
    assert did == [
        *((stage, worker.pid) for stage in ("collect", "render")),
        *((stage, heir.pid) for stage in ("print", "mail")),
    ]
    check_recorded(server, entries)


async def restart(server: Backend) -> None:
    server.kill()
    await asyncio.to_thread(server.start)
