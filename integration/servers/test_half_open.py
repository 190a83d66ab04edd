"""Half-open connections: no answer comes, and no end is reported. Each side detects that by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from checks.audit import reconcile
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.relay import Relay

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

pytestmark = pytest.mark.servers("one")


@pytest.fixture
def relay(server: Backend) -> Iterator[Relay]:
    relay = Relay(server.socket)
    relay.start()
    yield relay
    relay.close()


@pytest.mark.long
async def test_an_idle_worker_behind_dead_connections_serves_again(
    server: Backend, relay: Relay, run: Run, journal: Journal
) -> None:
    worker = run("worker", "apps.event_app:provider", url=relay.url)
    worker.wait_logged("worker ready")
    async with EventProvider(server.url) as provider:
        first = provider.emit("work", {"n": 1})
        heard = {first.job_id: await first}
        for n in range(2):  # the second time with connections made after the first
            await until("its connections are there", lambda: relay.alive == 4, story=worker.story)
            assert await asyncio.to_thread(relay.forget) == 4
            emission = provider.emit("work", {"n": n})
            heard[emission.job_id] = await emission
    reconcile(server, heard, journal=journal)
    assert set(journal.runs().values()) == {1}
    assert worker.complaints() == []


async def test_a_worker_at_work_behind_dead_connections_keeps_its_jobs_and_settles_them(
    server: Backend, relay: Relay, run: Run, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    worker = run("worker", "apps.event_app:provider", url=relay.url)
    worker.wait_logged("worker ready")
    await until("its connections are there", lambda: relay.alive == 4, story=worker.story)
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"}] * 20)
        await until("all run", lambda: len(journal.read("began")) == 20, story=worker.story)
        start_worker(server)  # one that would rescue them
        assert await asyncio.to_thread(relay.forget) == 4
        gates("open")
        results = [await each for each in emissions]
    assert {result["pid"] for result in results} == {worker.pid}
    heard = {each.job_id: result for each, result in zip(emissions, results, strict=True)}
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}


async def test_an_emitter_behind_dead_connections_hears_its_results_and_emits_again(
    server: Backend, relay: Relay, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    start_worker(server)
    async with EventProvider(relay.url, reply_timeout="1 hour") as provider:
        waiting = provider.emit_many("hold", [{"gate": "open"}] * 20)
        for each in waiting:
            await each.enqueued()
        await until("all run", lambda: len(journal.read("began")) == 20)
        await until("it reads its replies, too", lambda: relay.alive == 2)
        assert await asyncio.to_thread(relay.forget) == 2
        gates("open")
        sent = provider.emit_many("work", [{"n": n} for n in range(20)])
        heard = {each.job_id: await each for each in (*waiting, *sent)}
    reconcile(server, heard, journal=journal)
    assert set(journal.runs().values()) == {1}
