"""An older and a newer release on one server, and jobs that neither can run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from apps.release_app import go_on, graph, program
from checks.audit import Audit, reconcile
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.load import Load
from harness.programs import Program
from harness.releases import FIRST_EDITION, OLDER, older_release

from eventbus import Change, EventProvider, Watch
from workflows import WorkflowProvider

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return _find(tmp_path / "older", OLDER)


@pytest.fixture
def first_edition(tmp_path: Path) -> Path:
    return _find(tmp_path / "first", FIRST_EDITION)


def _find(folder: Path, commit: str) -> Path:
    found = older_release(folder, commit)
    if found is None:
        pytest.skip(f"no history here that reaches to {commit}")
    return found


async def test_workers_and_emitters_of_two_releases_share_the_work_of_one_server(
    older: Path, server: Backend, start_worker: Run, run: Run, journal: Journal
) -> None:
    new, old = start_worker(server), start_worker(server, release=older)
    async with EventProvider(server.url) as provider:
        load = Load(provider, loops=100)
        emitters = [
            run("work", '{"n":0}', "200", module="apps.held_emitter", url=server.url, release=each)
            for each in (older, None)
        ]
        for emitter in emitters:
            await until("it has its results", lambda each=emitter: each.has_ended, story=emitter.story)
        by: set[str] = set()

        def both_served() -> bool:
            by.update(result["by"].partition("-")[0] for result in load.results().values())
            return by == {str(new.pid), str(old.pid)}

        await until("both releases served the emitter of this one", both_served)
        await load.end()
    heard = load.results()
    for emitter in emitters:
        assert emitter.wait_ended() == 0
        ids, _, results, _ = emitter.lines()
        heard |= dict(zip(ids, results, strict=True))
    for worker in (new, old):
        worker.send(signal.SIGTERM)
        assert worker.wait_ended() == 0
    assert load.errors() == []
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}
    assert (new.complaints(), old.complaints()) == ([], [])


async def test_a_watch_beside_an_older_release_tells_what_this_one_does(
    older: Path, server: Backend, start_worker: Run
) -> None:
    """What calls of the older release change is not told; they take nothing from the watch, and it nothing
    from them.
    """
    new, old = start_worker(server), start_worker(server, release=older)
    told: list[Change] = []

    async def look(watch: Watch) -> None:
        async for change in watch:
            told.append(change)  # noqa: PERF401  (as they come)

    async with EventProvider(server.url) as provider, provider.watch("work") as watch:
        looks = asyncio.create_task(look(watch))
        load, by = Load(provider, loops=50), set[str]()

        def both_served() -> bool:
            by.update(result["by"].partition("-")[0] for result in load.results().values())
            return by == {str(new.pid), str(old.pid)}

        await until("both releases served", both_served)
        await load.end()
        by_this = {job for job, result in load.results().items() if result["by"].startswith(f"{new.pid}-")}
        await until(
            "all is told", lambda: by_this <= {each.job_id for each in told if each.what == "completed"}
        )
        looks.cancel()
        await asyncio.wait([looks])
    assert load.errors() == []
    assert "missed" not in {each.what for each in told}
    # A call of the older release may have settled a job that this one claimed only if it rescued it; none
    # stalled.
    assert {each.job_id for each in told if each.what == "completed"} == by_this
    assert load.results().keys() <= {each.job_id for each in told if each.what == "added"}
    for worker in (new, old):
        worker.send(signal.SIGTERM)
        assert worker.wait_ended() == 0
        assert worker.complaints() == []


async def test_workers_of_two_releases_share_the_flows_of_one_server(
    older: Path, server: Backend, run: Run
) -> None:
    where = ("worker", "apps.release_app:provider")
    workers = [run(*where, url=server.url, release=each) for each in (older, None)]
    for each in workers:
        each.wait_logged("worker ready")
    by_graphs: set[int] = set()
    together: list[list[int]] = []
    async with EventProvider(server.url) as provider:
        flows = WorkflowProvider(provider)
        flows.register(graph)
        flows.register(program)

        async def run_both() -> None:
            graphs = [await flows.execute(graph, number) for number in range(20)]
            programs = [await flows.execute(program, number) for number in range(20)]
            for number in (1, 2, 0):
                for each in programs:
                    await each.signal(go_on, number)
            for flow in graphs:
                by_graphs.update(await flow.result(240))
            for flow in programs:
                found = await flow.result(240)
                assert len(found) == 3
                if len(set(found)) == 2:
                    together.append(found)

        async with asyncio.timeout(90):
            while not (len(by_graphs) == 2 and together):
                await run_both()
    assert by_graphs == {each.pid for each in workers} == set(together[0])
    for each in workers:
        each.send(signal.SIGTERM)
        assert each.wait_ended() == 0
        assert each.complaints() == []
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})


async def test_a_job_of_a_newer_format_is_parked_until_somebody_can_run_it(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("work", [{"n": n} for n in range(100)], reply_timeout=None)
        for each in emissions:
            await each.enqueued()
        newer = emissions.pop(50)
        server.command("SETRANGE", f"eb:2:{{0}}:job:{newer.job_id}", 0, "0")  # the format to come
        first = start_worker(server)
        heard = {each.job_id: await each for each in emissions}
        start_worker(server)  # it re-queues parked jobs that it can run
        audit = Audit(server)
        assert audit.problems == []
        assert audit.members("parked", "event.work") == {newer.job_id}
        assert audit.left_open() == {"parked": 1}
        record = audit.jobs[newer.job_id]
        assert (record.state, record.attempts, record.stalls) == ("parked", 0, 0)

        # As if the next release could run it.
        server.command("SETRANGE", f"eb:2:{{0}}:job:{newer.job_id}", 0, "%")
        start_worker(server)
        heard[newer.job_id] = await newer
    reconcile(server, heard, journal=journal)
    assert set(journal.runs().values()) == {1}
    assert first.complaints() == []


async def test_releases_of_two_editions_work_side_by_side_and_the_newer_one_says_so(
    first_edition: Path, server: Backend, start_worker: Run, run: Run
) -> None:
    old = start_worker(server, release=first_edition)
    emit = ("work", '{"n":0}', "20")
    emitters = [run(*emit, module="apps.held_emitter", url=server.url, release=first_edition)]
    await until("the older one has its results", lambda: emitters[0].has_ended, story=old.story)
    new = start_worker(server)
    emitters.append(run(*emit, module="apps.held_emitter", url=server.url))
    await until("the newer one has its results", lambda: emitters[1].has_ended, story=new.story)
    for emitter, worker in zip(emitters, (old, new), strict=True):
        assert emitter.wait_ended() == 0
        assert {result["by"].partition("-")[0] for result in emitter.lines()[2]} == {str(worker.pid)}
        worker.send(signal.SIGTERM)
        assert worker.wait_ended() == 0
    (line,) = new.logged(
        "the server has keys of the first edition of the store under this prefix, "
        "which this version does not read"
    )
    assert line["keys"] == "eb:{0}:*"
    with server.client() as client:
        client.delete(*client.scan_iter("eb:{0}:*", count=1000))
