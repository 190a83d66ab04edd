"""Servers that are killed, restarted, emptied of their scripts, or not there yet."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest
from audit import reconcile
from backends import Backend
from conditions import last, until, wait_until
from journal import Journal
from load import Load
from programs import Program

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def check_nothing_is_lost(load: Load, server: Backend, journal: Journal) -> None:
    """What the server acknowledged has ended and was heard; what it may have got has ended or is unknown to it."""
    assert [error for error in load.errors() if getattr(error, "enqueued", "") is not None] == []
    assert {job for job in load.acknowledged() if job not in load.results()} == set()
    audit = reconcile(server, load.results(), journal=journal, maybe=load.unknown())
    assert {record.attempts for record in audit.jobs.values()} == {0}


@pytest.mark.timeout(90)
async def test_a_server_killed_and_restarted_under_load_loses_nothing_it_acknowledged(
    make_server: Callable[..., Backend], start_worker: Run, journal: Journal
) -> None:
    server = make_server(*DURABLE)
    workers = [start_worker(server, lease="2s") for _ in range(2)]
    async with EventProvider(server.url, lease="2s") as provider:
        load = Load(provider)
        await load.wait_answered(300, story=workers[0].story)
        for down in (0, 1, 6):  # the last one for 3 leases
            server.kill()
            await last(down)
            await asyncio.to_thread(server.start)
            await load.wait_answered(300, story=workers[0].story)
        await load.end()
    for worker in workers:
        worker.send(signal.SIGTERM)
        assert worker.wait_ended() == 0
        assert worker.complaints() == []
        assert worker.logged("job stalled too often, failed") == []
    check_nothing_is_lost(load, server, journal)
    again = sum(journal.runs().values()) - len(journal.runs())
    # Each restart may cost what was claimed and not settled, or settled and not answered.
    assert again <= 3 * 20, "no mass of false stalls"


@pytest.mark.servers("one")
async def test_jobs_held_while_the_server_is_down_for_three_leases_are_not_taken_away(
    make_server: Callable[..., Backend], start_worker: Run, gates: Gates, journal: Journal
) -> None:
    server = make_server(*DURABLE)
    workers = [start_worker(server, lease="1s") for _ in range(2)]
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"}] * 40)
        await until("all run", lambda: len(journal.read("began")) == 40, story=workers[0].story)
        server.kill()
        await last(3)
        await asyncio.to_thread(server.start)
        await until(
            "all are back",
            lambda: all(worker.logged("server available again") for worker in workers),
            story=workers[0].story,
        )
        await last(2)  # when a rescue could have come
        gates("open")
        heard = {each.job_id: await each for each in emissions}
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}


@pytest.mark.servers("all")
async def test_scripts_flushed_under_load_cost_nothing(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    worker = start_worker(server)
    async with EventProvider(server.url) as provider:
        load = Load(provider)
        for _ in range(10):
            await load.wait_answered(100, story=worker.story)
            server.command("SCRIPT", "FLUSH")
        await load.end()
    assert load.errors() == []
    audit = reconcile(server, load.results(), journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}
    assert worker.complaints() == []
    assert 1 <= len(worker.logged("the server forgot its scripts, sending them again")) <= 10, (
        "a line for each flush"
    )
    assert [entry for entry in worker.log() if entry["level"] != "info"] == []


async def test_a_provider_started_without_a_server_works_once_it_is_there(
    make_server: Callable[..., Backend], start_worker: Run, journal: Journal
) -> None:
    server = make_server()
    server.kill()
    server.socket.unlink(missing_ok=True)
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("work", [{"n": n} for n in range(50)], reply_timeout=30)
        await until("they wait", lambda: not any(each.done() for each in emissions))
        await asyncio.to_thread(server.start)
        start_worker(server)
        heard = {each.job_id: await each for each in emissions}
    reconcile(server, heard, journal=journal)


async def test_a_worker_started_without_a_server_is_ready_once_it_is_there(
    make_server: Callable[..., Backend],
) -> None:
    server = make_server()
    server.kill()
    provider = EventProvider(server.url)

    @provider.on("add")
    async def add(n: int) -> int:
        return n + 1

    async def serve() -> int:
        async with provider.worker():
            return await provider.emit("add", 1)

    serving = asyncio.create_task(serve())
    await until("it has tried", lambda: provider.loop is not None)
    await asyncio.to_thread(server.start)
    assert await serving == 2


@pytest.mark.servers("one")
async def test_the_worker_command_waits_for_a_server_that_comes_later(
    make_server: Callable[..., Backend], run: Run, journal: Journal
) -> None:
    server = make_server()
    server.kill()
    worker = run("worker", "shop:provider", url=server.url)
    await asyncio.to_thread(worker.wait_logged, "server not there, waiting for it")
    await asyncio.to_thread(server.start)
    async with EventProvider(server.url) as provider:
        emission = provider.emit("work", {"n": 1})
        heard = {emission.job_id: await emission}
    reconcile(server, heard, journal=journal)
    assert worker.complaints() == []


@pytest.mark.servers("one")
async def test_a_worker_whose_server_is_restarted_empty_goes_on(
    make_server: Callable[..., Backend], start_worker: Run
) -> None:
    server = make_server()  # keeps nothing
    worker = start_worker(server)
    async with EventProvider(server.url) as provider:
        await provider.emit("work", {"n": 1})
        server.kill()
        await asyncio.to_thread(server.start)
        result = await provider.emit("work", {"n": 2})
        assert result["n"] == 2
    worker.send(signal.SIGTERM)
    wait_until("it ends", lambda: worker.has_ended, story=worker.story)
    assert worker.wait_ended() == 0
    assert worker.complaints() == []
