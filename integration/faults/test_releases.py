"""An older and a newer release on one server, and what neither can run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from audit import Audit, reconcile
from backends import Backend
from conditions import until
from journal import Journal
from load import Load
from programs import Program
from releases import OLDER, older_release

from eventbus import EventProvider

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    folder = tmp_path / "older"
    folder.mkdir()
    found = older_release(folder)
    if found is None:
        pytest.skip(f"no history here that reaches to {OLDER}")
    return found


async def test_workers_and_emitters_of_two_releases_share_the_work_of_one_server(
    older: Path, server: Backend, start_worker: Run, run: Run, journal: Journal
) -> None:
    new, old = start_worker(server), start_worker(server, release=older)
    async with EventProvider(server.url) as provider:
        load = Load(provider, loops=100)
        emitters = [
            run("work", '{"n":0}', "200", module="holder", url=server.url, release=each)
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
    with server.client() as client:
        # A worker's memory of its own calls, read by it alone, and a counter that only the older one has.
        for kind in ("last", "meta"):
            client.delete(*client.scan_iter(f"eb:{{0}}:{kind}:*", count=1000))
    assert load.errors() == []
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}
    assert (new.complaints(), old.complaints()) == ([], [])


async def test_a_job_of_a_newer_format_is_parked_until_somebody_can_run_it(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("work", [{"n": n} for n in range(100)], reply_timeout=None)
        for each in emissions:
            await each.enqueued()
        newer = emissions.pop(50)
        server.command("HSET", f"eb:{{0}}:job:{newer.job_id}", "v", "2")
        first = start_worker(server)
        heard = {each.job_id: await each for each in emissions}
        start_worker(server)  # it takes back what is parked and could be run
        audit = Audit(server)
        assert audit.problems == []
        assert audit.members("parked", "event.work") == {newer.job_id}
        assert audit.left_open() == {"parked": 1}
        record = audit.jobs[newer.job_id]
        assert (record.state, record.attempts, record.stalls) == ("parked", 0, 0)

        server.command("HDEL", f"eb:{{0}}:job:{newer.job_id}", "v")  # as if the next release could run it
        start_worker(server)
        heard[newer.job_id] = await newer
    reconcile(server, heard, journal=journal)
    assert set(journal.runs().values()) == {1}
    assert first.complaints() == []
