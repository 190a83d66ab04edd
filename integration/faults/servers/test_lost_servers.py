"""Servers that are killed, restarted, flushed of their scripts, or not started yet."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

import pytest
from checks.audit import reconcile
from harness.backends import Backend
from harness.conditions import last, until, wait_until
from harness.journal import Journal
from harness.load import Load
from harness.programs import Program
from structlog.testing import capture_logs

from eventbus import EmitError, EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def check_nothing_is_lost(load: Load, server: Backend, journal: Journal) -> None:
    """Acknowledged jobs have ended and their results came; jobs of unknown fate have ended or do not
    exist.
    """
    assert [error for error in load.errors() if getattr(error, "enqueued", "") is not None] == []
    assert {job for job in load.acknowledged() if job not in load.results()} == set()
    audit = reconcile(server, load.results(), journal=journal, maybe=load.unknown())
    assert {record.attempts for record in audit.jobs.values()} == {0}


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
    # Each restart may cost jobs that were claimed and not settled, or settled and not answered.
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


@pytest.mark.servers("each")
async def test_scripts_flushed_under_load_cost_nothing(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    worker = start_worker(server)
    with capture_logs() as own:
        async with EventProvider(server.url) as provider:
            load = Load(provider)
            for _ in range(10):
                await load.wait_answered(100, story=worker.story)
                server.command("SCRIPT", "FLUSH")
                if server.kind != "redis6":
                    server.command("FUNCTION", "FLUSH")
            await load.end()
    assert load.errors() == []
    audit = reconcile(server, load.results(), journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}
    assert worker.complaints() == []
    told = "the server forgot its scripts, sending them again"
    lines = len(worker.logged(told)), len([each for each in own if each["event"] == told])
    assert sum(lines) >= 1, "functions: of the process that finds them missing first"
    assert max(lines) <= 10, "a line for each flush"
    assert [entry for entry in worker.log() if entry["level"] != "info"] == []


async def test_a_provider_started_without_a_server_works_once_it_is_there(
    make_server: Callable[..., Backend], start_worker: Run, journal: Journal
) -> None:
    server = make_server()
    server.kill()
    server.socket.unlink(missing_ok=True)
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("work", [{"n": n} for n in range(50)], reply_timeout=300)
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
    await until("it has tried", lambda: provider._life.loop is not None)
    await asyncio.to_thread(server.start)
    assert await serving == 2


@pytest.mark.servers("one")
async def test_the_worker_command_waits_for_a_server_that_comes_later(
    make_server: Callable[..., Backend], run: Run, journal: Journal
) -> None:
    server = make_server()
    server.kill()
    worker = run("worker", "apps.event_app:provider", url=server.url)
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


def events(worker: Program) -> list[str]:
    """Return what it logged at level info and above, in order, but for what a busy machine makes it say."""
    logged = [each["event"] for each in worker.log() if each["level"] != "debug"]
    return [event for event in logged if not event.startswith("event loop blocked")]


@pytest.mark.servers("one")
@pytest.mark.long
async def test_a_server_that_is_away_is_one_line_when_it_goes_and_one_when_it_is_back(
    make_server: Callable[..., Backend], start_worker: Run, gates: Gates, journal: Journal
) -> None:
    server = make_server(*DURABLE)
    # The lease outlives the outage. A job whose lease ran out may be claimed just when the server goes again,
    # and a worker that did not hear of the claim has nothing to renew.
    idle = start_worker(server, "--queues", "work", lease="30s")
    busy = start_worker(server, "--queues", "hold", lease="30s")
    leases = ["leases not renewed, trying again", "leases renewed again"]
    told, longest = ["server not available, trying again", "server available again"], list[float]()
    with capture_logs() as logs:
        async with EventProvider(server.url, reply_timeout="1s") as provider:
            held = provider.emit("hold", {"gate": "open"}, reply_timeout=300)
            await until("it runs", lambda: journal.read("began"), story=busy.story)
            for times in (1, 2):
                began = time.monotonic()
                server.kill()
                lost = provider.emit("work", {"n": 0})
                await last(8)
                with pytest.raises(EmitError):
                    await lost
                await asyncio.to_thread(busy.wait_logged, leases[0], times=times)
                await asyncio.to_thread(server.start)
                for worker in (idle, busy):
                    await asyncio.to_thread(worker.wait_logged, told[1], times=times)
                await asyncio.to_thread(busy.wait_logged, leases[1], times=times)
                assert (await provider.emit("work", {"n": times}, reply_timeout=300))["n"] == times
                longest.append(time.monotonic() - began)
            gates("open")
            await held
    ours = [each for each in logs if each["log_level"] != "debug"]
    assert [each["event"] for each in ours] == told * 2
    assert {each["address"] for each in ours} == {f"unix:{server.socket}"}
    assert "no server at" in ours[0]["error"]
    assert 6 < ours[1]["away"] < longest[0]
    assert ours[1]["repeats"] >= 2
    for worker in (idle, busy):
        worker.send(signal.SIGTERM)
        assert worker.wait_ended() == 0
    assert events(idle) == ["worker ready", *told * 2, "stopping", "worker stopped"]
    assert [each for each in events(busy) if each not in leases] == events(idle)
    assert [each for each in events(busy) if each in leases] == leases * 2


@pytest.mark.servers("one")
async def test_a_connection_that_is_cut_and_made_again_at_once_is_no_news(
    server: Backend, start_worker: Run
) -> None:
    worker = start_worker(server)
    with capture_logs() as logs:
        async with EventProvider(server.url) as provider:
            for n in range(5):
                server.command("CLIENT", "KILL", "TYPE", "normal")
                assert (await provider.emit("work", {"n": n}))["n"] == n
    assert [each for each in logs if each["log_level"] != "debug"] == []
    worker.send(signal.SIGTERM)
    assert worker.wait_ended() == 0
    assert events(worker) == ["worker ready", "stopping", "worker stopped"]


async def test_a_start_without_a_server_is_one_line_and_its_coming_is_another(
    make_server: Callable[..., Backend],
) -> None:
    server = make_server()
    server.kill()
    server.socket.unlink(missing_ok=True)
    provider = EventProvider(server.url)

    @provider.on("add")
    async def add(n: int) -> int:
        return n + 1

    async def serve() -> None:
        async with provider.worker():
            assert await provider.emit("add", 1) == 2

    with capture_logs() as logs:
        serving = asyncio.create_task(serve())
        await last(7)
        await asyncio.to_thread(server.start)
        await serving
    told = [each["event"] for each in logs if each["log_level"] != "debug"]
    assert told == [
        "started without a server, trying on",
        "server available again",
        "worker ready",
        "worker stopped",
    ]
