"""Processes that die: emitters that never hear their answer, handlers that take their worker along."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from audit import Audit, reconcile
from backends import Backend
from conditions import until
from eventbus import EventProvider, StalledError
from journal import Journal
from programs import Program

Run = Callable[..., Program]
Gates = Callable[[str], None]


@pytest.mark.servers("all")
async def test_the_result_for_an_emitter_that_was_killed_is_there_by_id(
    server: Backend, start_worker: Run, run: Run, gates: Gates, journal: Journal
) -> None:
    worker = start_worker(server)
    emitter = run("hold", '{"gate":"open"}', module="holder", url=server.url)
    await until("its job runs", lambda: len(journal.read("began")) == 1, story=emitter.story)
    await until("it knows the id", lambda: len(emitter.out.splitlines()) == 1, story=emitter.story)
    job = emitter.lines()[0]
    emitter.kill()
    gates("open")
    async with EventProvider(server.url) as provider:
        result = await provider.result(job, reply_timeout="20s")
    assert result == {"gate": "open", "pid": worker.pid}
    reconcile(server, {job: result}, journal=journal)


class Supervisor:
    """Starts a worker again whenever it has ended by itself, as an init system would."""

    def __init__(self, start: Callable[[], Program]) -> None:
        self._start = start
        self.workers = [start()]

    def look(self) -> None:
        if self.workers[-1].has_ended:
            self.workers.append(self._start())

    def story(self) -> str:
        return self.workers[-1].story()


@pytest.mark.timeout(90)
async def test_a_job_that_kills_its_worker_fails_in_the_end_and_the_others_complete(
    server: Backend, run: Run, journal: Journal
) -> None:
    settings: dict[str, object] = {"lease": "500ms", "max_stalls": 2}
    supervisor = Supervisor(lambda: run("worker", "shop:provider", url=server.url, **settings))
    async with EventProvider(server.url, reply_timeout=60) as provider:
        before = provider.emit_many("work", [{"n": n} for n in range(100)])
        poison = provider.emit("poison", {"n": -1})
        after = provider.emit_many("work", [{"n": n} for n in range(100, 200)])

        def is_over() -> bool:
            supervisor.look()
            return all(each.done() for each in (*before, poison, *after))

        await until("all have ended", is_over, within=60, story=supervisor.story)
        with pytest.raises(StalledError, match="the lease ran out 3 times") as stalled:
            await poison
        heard = {each.job_id: await each for each in (*before, *after)}
    assert (stalled.value.stalls, stalled.value.job_id) == (3, poison.job_id)
    assert journal.runs()[poison.job_id] == 3
    assert {each.process.returncode for each in supervisor.workers[:-1]} == {9}
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})
    assert audit.jobs[poison.job_id].state == "failed"
    assert {audit.jobs[job].state for job in heard} == {"completed"}
    assert set(audit.jobs) == {*heard, poison.job_id}
