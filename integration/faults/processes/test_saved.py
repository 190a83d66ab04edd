"""Jobs that save what is done and put themselves off, while their workers are killed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Callable

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program

from eventbus import EventProvider

Run = Callable[..., Program]

_JOBS, _PARTS, _KILLS = 10, 300, 3


@pytest.mark.timeout(120)
async def test_a_job_goes_on_behind_what_it_saved_whenever_its_worker_is_killed(
    server: Backend, run: Run, journal: Journal
) -> None:
    rng = random.Random(11)

    def start() -> Program:
        worker = run("worker", "apps.saved_app:provider", url=server.url, lease="500ms", max_stalls=20)
        worker.wait_logged("worker ready")
        return worker

    workers = [start() for _ in range(2)]
    async with EventProvider(server.url, reply_timeout=100) as provider:
        emissions = provider.emit_many("walk", [{"parts": _PARTS}] * _JOBS)
        for _ in range(_KILLS):
            before = len(journal.read("part"))
            await until("they go on", lambda before=before: len(journal.read("part")) > before + 100)
            workers.pop(rng.randrange(2)).kill()
            workers.append(start())
        assert await asyncio.gather(*emissions) == [_PARTS] * _JOBS, "each ends once, with all parts"
    done: defaultdict[str, list[int]] = defaultdict(list)
    for entry in journal.read("part"):
        done[entry.job].append(entry.payload)
        assert entry.attempt == 1, "neither Later nor a stall is an attempt"
    for job in (emission.job_id for emission in emissions):
        assert sorted(set(done[job])) == list(range(_PARTS))
        steps = [after - before for before, after in itertools.pairwise(done[job])]
        assert set(steps) <= {0, 1}, "a part is done again only if its worker died before it was saved"
        assert steps.count(0) <= _KILLS
    jobs = Audit(server).jobs
    assert {jobs[emission.job_id].state for emission in emissions} == {"completed"}
