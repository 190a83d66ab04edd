"""A server whose memory is full: it refuses emissions and lets running jobs end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from audit import Audit, reconcile
from backends import Backend
from conditions import until
from journal import Journal
from programs import Program

from eventbus import EmitError, EventProvider, StoreRefused

Run = Callable[..., Program]
Gates = Callable[[str], None]


@pytest.mark.servers("all")
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
    with server.client() as client:  # what nobody serves is not part of the reckoning
        client.delete("eb:{0}:ready:event.nobody")
        for job in stored:
            client.delete(f"eb:{{0}}:job:{job}", f"eb:{{0}}:body:{job}")
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
