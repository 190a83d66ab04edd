"""A server whose memory is full: it refuses emissions and lets running jobs end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest
from apps import flow_app
from checks.audit import Audit, reconcile
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program

from eventbus import EmitError, Event, EventProvider, StoreRefused
from workflows import WorkflowProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

keyed = Event("keyed", payload=dict[str, Any], key=lambda payload: payload["key"])


@pytest.mark.servers("each")
async def test_at_maxmemory_emissions_are_refused_and_running_jobs_end(
    server: Backend, start_worker: Run, run: Run, gates: Gates, journal: Journal
) -> None:
    worker = start_worker(server, lease="2s")
    async with EventProvider(server.url) as provider:
        held = provider.emit_many("hold", [{"gate": "open", "text": "x" * 200}] * 50)
        await until("all run", lambda: len(journal.read("began")) == 50, story=worker.story)
        waiting = provider.emit_many("work", [{"n": n} for n in range(200)], delay="1ms")
        heard = {each.job_id: await each for each in waiting}

        server.command(
            "CONFIG", "SET", "maxmemory", server.command("INFO", "memory")["used_memory"] + (4 << 20)
        )
        refused: list[EmitError] = []
        stored: list[str] = []
        while not refused:
            emissions = provider.emit_many("nobody", ["y" * 20_000] * 50, reply=False)
            for each in emissions:
                try:
                    await each
                    stored.append(each.job_id)
                except EmitError as error:
                    refused.append(error)
        for error in refused:
            assert error.enqueued is False
            assert "maxmemory" in str(error)
            assert isinstance(error.__cause__, StoreRefused)
            assert error.__cause__.code == "OOM"
        server.command("CONFIG", "SET", "maxmemory", "1mb")  # less than there is: full for the smallest
        told = run("emit", "work", '{"n":1}', "--await", url=server.url)
        await until("the command ends", lambda: told.has_ended, story=told.story)
        assert told.wait_ended() == 1
        assert told.err.count("\n") == 1
        assert "maxmemory is reached; raise it" in told.err

        gates("open")
        heard |= {each.job_id: await each for each in held}
        assert len(journal.read("ended")) == 250

        server.command("CONFIG", "SET", "maxmemory", 0)
        late = provider.emit("work", {"n": 7})
        heard[late.job_id] = await late
    jobs = Audit(server).jobs
    assert {job for job, record in jobs.items() if record.queue == "event.nobody"} == set(stored)
    assert worker.complaints() == []
    with server.client() as client:  # queues that no worker serves are not compared
        client.delete("eb:2:{0}:ready:event.nobody")
        for job in stored:
            client.delete(f"eb:2:{{0}}:job:{job}", f"eb:2:{{0}}:body:{job}")
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}


@pytest.mark.servers("each")
async def test_a_fleet_that_starts_against_a_full_server_drains_it(
    server: Backend, run: Run, journal: Journal
) -> None:
    async with EventProvider(server.url) as provider:
        await provider.add_group("notice", "audit")
        flows = WorkflowProvider(provider)
        flows.register(flow_app.order)
        handles = [await flows.execute(flow_app.order, flow_app.Order(n)) for n in range(10)]
        waiting = [
            *provider.emit_many("work", [{"n": n, "text": "x" * 500} for n in range(300)], reply=False),
            *provider.emit_many(keyed, [{"key": f"k{n % 30}"} for n in range(60)], reply=False),
            *provider.emit_many("notice", [{"n": n} for n in range(20)], reply=False),
            *provider.emit_many("work", [{"n": n} for n in range(20)], delay="1s", reply=False),
            *provider.emit_many("flaky", [{"good": 3}] * 10, reply=False),
        ]
        telling = provider.emit_many("tell-on", [{"n": n} for n in range(20)], reply=False)
        for each in (*waiting, *telling):
            await each
    server.command("CONFIG", "SET", "maxmemory", "1mb")  # less than there is, also at the end

    fleet = [
        run("worker", program, url=server.url, lease="1s")
        for program in ("apps.event_app:provider", "apps.flow_app:provider") * 2
    ]
    for worker in fleet:
        await asyncio.to_thread(worker.wait_logged, "worker ready")
    await until(
        "all has ended",
        lambda: Audit(server).left_open() == {},
        story=lambda: "".join(each.story() for each in fleet),
    )
    async with EventProvider(server.url) as provider:
        heard = {each.job_id: await provider.result(each.job_id) for each in waiting}
        for each in telling:
            told = heard[each.job_id] = await provider.result(each.job_id)
            assert told["enqueued"] is False
            assert "maxmemory is reached; raise it" in told["why"]
        flows = WorkflowProvider(provider)
        flows.register(flow_app.order)
        assert [await flows.handle(each.id).result() for each in handles] == [f"order {n}" for n in range(10)]
        with pytest.raises(EmitError, match="maxmemory") as caught:
            await flows.execute(flow_app.order, flow_app.Order(7))
        assert caught.value.enqueued is False
        with pytest.raises(EmitError, match="maxmemory"):
            await provider.emit("work", {"n": 1})
    for worker in fleet:
        worker.send(signal.SIGTERM)
    for worker in fleet:
        assert worker.wait_ended() == 0
        allowed = {"worker ready", "stopping", "worker stopped", "attempt failed, trying again"}
        # A full server refuses what nobody needs.
        allowed |= {"history not written, trying again", "definitions not told"}
        assert {each["event"] for each in worker.log()} <= allowed
    audit = Audit(server)
    assert audit.problems == []
    assert {record.state for record in audit.jobs.values()} == {"completed"}
    assert {record.stalls for record in audit.jobs.values()} == {0}
    runs = journal.runs()
    assert {runs[job] for job in heard if audit.jobs[job].queue != "event.flaky"} == {1}
    assert len(journal.read("began")) >= 300 + 30 + 2 * 20 + 20 + 3 * 10 + 20
