"""Servers and workers that are paused and go on: which leases are lost, and which are not."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from checks.audit import Audit, reconcile
from harness.backends import Backend
from harness.conditions import last, until
from harness.journal import Journal
from harness.load import Load
from harness.programs import Program

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

LEASE = 1.0


async def check_held_over(
    fault: Callable[[], object],
    end: Callable[[], object],
    server: Backend,
    start_worker: Run,
    gates: Gates,
    journal: Journal,
) -> None:
    """The server is paused for 3 leases while two workers hold jobs under load: no worker loses a lease."""
    workers = [start_worker(server, lease=LEASE) for _ in range(2)]
    async with EventProvider(server.url, lease=LEASE) as provider:
        held = provider.emit_many("hold", [{"gate": "open"}] * 30)
        await until("all run", lambda: len(journal.read("began")) == 30, story=workers[0].story)
        load = Load(provider, loops=10)
        await load.wait_answered(100, story=workers[0].story)
        fault()
        await last(3 * LEASE)
        end()
        await load.wait_answered(100, story=workers[0].story)
        await last(2 * LEASE)  # when a rescue could have come
        gates("open")
        heard = {each.job_id: await each for each in held}
        await load.end()
    assert load.errors() == []
    audit = reconcile(server, heard | load.results(), journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}, "no false stalls"
    assert set(journal.runs().values()) == {1}
    assert [worker.complaints() for worker in workers] == [[], []]


async def test_a_server_stopped_for_three_leases_costs_nobody_a_lease(
    server: Backend, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    await check_held_over(server.pause, server.resume, server, start_worker, gates, journal)


@pytest.mark.servers("one")
async def test_clients_paused_for_three_leases_lose_no_lease(
    server: Backend, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    def pause() -> None:
        server.command("CLIENT", "PAUSE", round(3 * LEASE * 1000), "ALL")

    await check_held_over(pause, lambda: None, server, start_worker, gates, journal)


@pytest.mark.servers("one")
async def test_a_handler_that_blocks_the_event_loop_for_three_leases_keeps_its_job(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    lease = 2.0
    workers = [start_worker(server, lease=lease) for _ in range(2)]
    async with EventProvider(server.url) as provider:
        blocking = provider.emit("block", {"seconds": 3 * lease})
        await until("it runs", lambda: len(journal.read("began")) == 1, story=workers[0].story)
        load = Load(provider, loops=5)  # the other worker goes on
        result = await blocking
        await load.end()
    holder = next(worker for worker in workers if worker.pid == result["pid"])
    (warning,) = holder.logged("event loop blocked; run CPU-bound code outside it")
    assert "time.sleep(payload" in warning["stack"]
    audit = reconcile(server, {blocking.job_id: result} | load.results(), journal=journal)
    assert audit.jobs[blocking.job_id].stalls == 0
    assert set(journal.runs().values()) == {1}


async def test_what_a_worker_that_overslept_its_lease_still_settles_is_refused(
    server: Backend, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    first = start_worker(server, lease=LEASE)
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"}] * 10)
        await until("all run", lambda: len(journal.read("began")) == 10, story=first.story)
        second = start_worker(server, lease=LEASE)
        first.send(signal.SIGSTOP)
        await until("all run again", lambda: len(journal.read("began")) == 20, story=second.story)
        gates("open")
        heard = {each.job_id: await each for each in emissions}
        first.send(signal.SIGCONT)
        await until(
            "it learns that it is late",
            lambda: (
                len(first.logged("lease lost, handler cancelled"))
                + len(first.logged("outcome refused: the lease was lost"))
                >= 10
            ),
            story=first.story,
        )
        # It goes on as if nothing had been.
        second.send(signal.SIGTERM)
        await until("the other one ends", lambda: second.has_ended, story=second.story)
        after = provider.emit("work", {"n": 1})
        heard[after.job_id] = await after
    assert {heard[each.job_id]["pid"] for each in emissions} == {second.pid}
    audit = reconcile(server, heard, journal=journal)
    assert {(audit.jobs[each.job_id].stalls, journal.runs()[each.job_id]) for each in emissions} == {(1, 2)}
    assert first.complaints() == []


@pytest.mark.servers("one")
async def test_an_emitter_that_slept_hears_its_answers(
    server: Backend, start_worker: Run, run: Run, gates: Gates
) -> None:
    start_worker(server)
    emitter = run("hold", '{"gate":"open"}', module="apps.held_emitter", url=server.url)
    await until("it knows", lambda: len(emitter.out.splitlines()) == 2, story=emitter.story)
    emitter.send(signal.SIGSTOP)
    gates("open")
    (job,) = emitter.lines()[0]
    await until("its job ended", lambda: Audit(server).jobs[job].state == "completed")
    emitter.send(signal.SIGCONT)
    await until("it ends", lambda: emitter.has_ended, story=emitter.story)
    assert emitter.wait_ended() == 0
    assert emitter.lines()[2][0]["gate"] == "open"
