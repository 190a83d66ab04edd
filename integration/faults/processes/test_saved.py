"""Jobs, steps and tasks that save what is done and put themselves off, while their workers are killed.

The windows are those of `workflows.execution.step_attempt`: `dies-before-save` (the part is done again),
`dies-after-save` (it is not), `dies-before-record` (all parts are there).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program

from eventbus import Emission, EventProvider
from workflows import FlowContext, Workflow, WorkflowProvider, durable

Run = Callable[..., Program]

_JOBS, _PARTS, _KILLS = 10, 300, 3


@pytest.mark.parametrize(
    "walker",
    ["step", *(pytest.param(each, marks=pytest.mark.long) for each in ("spread step", "task", "process"))],
)
async def test_a_step_goes_on_behind_what_it_saved_whenever_its_worker_is_killed(
    walker: str, server: Backend, run: Run, journal: Journal
) -> None:
    rng, number, parts = random.Random(12), 6 if walker == "process" else 10, 500

    def start() -> Program:
        worker = run("worker", "apps.saved_app:provider", url=server.url, lease="1500ms", max_stalls=50)
        worker.wait_logged("worker ready")
        return worker

    workers = [start() for _ in range(2)]
    async with EventProvider(server.url, reply_timeout=300) as provider:
        outcomes = await _begin(provider, walker, number, parts)
        for _ in range(_KILLS):
            enough = min(
                len(journal.read("part")) + 40, number * parts
            )  # while one starts, the other may do all
            await until("they go on", lambda enough=enough: len(journal.read("part")) >= enough)
            workers.pop(rng.randrange(2)).kill()
            workers.append(start())
        assert [await outcome() for outcome in outcomes] == [parts] * number, "each ends once, with all parts"
    done: defaultdict[str, list[int]] = defaultdict(list)
    for entry in journal.read("part"):
        done[entry.job].append(entry.payload)
        assert entry.attempt == 1, "neither Later nor a stall is an attempt"
    assert len(done) == number
    for walked in done.values():
        assert sorted(set(walked)) == list(range(parts))
        steps = [after - before for before, after in itertools.pairwise(walked)]
        assert set(steps) <= {0, 1}, "a part is done again only if its worker died before it was saved"
        assert steps.count(0) <= _KILLS


async def _begin(
    provider: EventProvider, walker: str, number: int, parts: int
) -> list[Callable[[], Awaitable[Any]]]:
    given = {"parts": parts}
    if walker == "process":
        return [partial(_outcome_of, each) for each in provider.emit_many("walk-apart", [given] * number)]
    flows = WorkflowProvider(provider)
    flows.register(_WALKS[walker])
    return [(await flows.execute(_WALKS[walker], given)).result for _ in range(number)]


async def _outcome_of(emission: Emission[Any]) -> Any:
    return await emission


@durable("walk-code")
async def _walk_code(_: FlowContext[Any]) -> int:
    raise AssertionError("workers alone have the code")


_WALKS: dict[str, Any] = {
    "step": Workflow("walk-step"),
    "spread step": Workflow("walk-spread", spread=True),
    "task": _walk_code,
}
"""The flows of `saved_app`, as a process declares them that has none of their steps."""


async def test_a_job_goes_on_behind_what_it_saved_whenever_its_worker_is_killed(
    server: Backend, run: Run, journal: Journal
) -> None:
    rng = random.Random(11)

    def start() -> Program:
        worker = run("worker", "apps.saved_app:provider", url=server.url, lease="1500ms", max_stalls=20)
        worker.wait_logged("worker ready")
        return worker

    workers = [start() for _ in range(2)]
    async with EventProvider(server.url, reply_timeout=300) as provider:
        emissions = provider.emit_many("walk", [{"parts": _PARTS}] * _JOBS)
        for _ in range(_KILLS):
            enough = min(len(journal.read("part")) + 100, _JOBS * _PARTS)
            await until("they go on", lambda enough=enough: len(journal.read("part")) >= enough)
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
