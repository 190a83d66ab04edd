"""Processes that die: emitters that never get their answer, and handlers that crash their worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from checks.audit import Audit, reconcile
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.supervisor import Supervisor

from eventbus import EventProvider, StalledError

Run = Callable[..., Program]
Gates = Callable[[str], None]


@pytest.mark.servers("each")
async def test_the_result_for_an_emitter_that_was_killed_is_there_by_id(
    server: Backend, start_worker: Run, run: Run, gates: Gates, journal: Journal
) -> None:
    worker = start_worker(server)
    emitter = run("hold", '{"gate":"open"}', module="apps.held_emitter", url=server.url)
    await until("its job runs", lambda: len(journal.read("began")) == 1, story=emitter.story)
    await until("it knows", lambda: len(emitter.out.splitlines()) == 2, story=emitter.story)
    (job,) = emitter.lines()[0]
    emitter.kill()
    gates("open")
    async with EventProvider(server.url) as provider:
        result = await provider.result(job, reply_timeout="20s")
    assert result == {"gate": "open", "pid": worker.pid}
    reconcile(server, {job: result}, journal=journal)


async def test_a_job_that_kills_its_worker_fails_in_the_end_and_the_others_complete(
    server: Backend, run: Run, gates: Gates, journal: Journal
) -> None:
    settings: dict[str, object] = {"lease": "1500ms", "max_stalls": 2}
    supervisor = Supervisor(lambda: run("worker", "apps.event_app:provider", url=server.url, **settings))
    async with EventProvider(server.url, reply_timeout=300) as provider:
        poison = provider.emit("poison", {"is_gated": True})
        heard: dict[str, object] = {}
        for death in range(3):
            # It crashes in the middle of its work, while others come and go.
            emissions = provider.emit_many("work", [{"n": n} for n in range(100)])
            heard |= {each.job_id: await each for each in emissions}
            await until(
                "the poison runs",
                lambda death=death: supervisor.look() or journal.runs()[poison.job_id] == death + 1,
                story=supervisor.story,
            )
            await until("the others are recorded", lambda: Audit(server).left_open() == {"active": 1})
            gates(str(death + 1))
            await until("it has crashed", lambda death=death: supervisor.look() or supervisor.deaths > death)
        with pytest.raises(StalledError, match="the lease ran out 3 times") as stalled:
            await poison
        late = provider.emit("work", {"n": 1})
        heard[late.job_id] = await late
    assert (stalled.value.stalls, stalled.value.job_id) == (3, poison.job_id)
    assert journal.runs()[poison.job_id] == 3
    assert {each.process.returncode for each in supervisor.workers[:-1]} == {9}
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})
    assert audit.jobs[poison.job_id].state == "failed"
    assert {(audit.jobs[job].state, audit.jobs[job].stalls) for job in heard} == {("completed", 0)}
    assert set(audit.jobs) == {*heard, poison.job_id}
