"""Debounced emissions and kept ones while workers are killed and answers are lost: the last payload runs, all
are answered.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

_KEYS = 4
_OPTIONS: dict[str, dict[str, Any]] = {
    "debounce": {"debounce": "100ms", "longest": "400ms"},
    "keep_last": {"keep_last": True},
}


def _check(journal: Journal, emitted: dict[str, list[tuple[int, str]]], results: dict[int, int]) -> None:
    """Each emission was answered by a run of its own payload or a later one, and the last payload ran
    last.
    """
    for key, emissions in emitted.items():
        runs = [entry for entry in journal.read("ended") if entry.job in {job for _, job in emissions}]
        numbers = [entry.payload["n"] for entry in runs]
        assert numbers == sorted(numbers), f"an older payload of {key} ran after a newer one: {numbers}"
        assert numbers[-1] == emissions[-1][0], f"the last payload of {key} ran last"
        assert len(set(numbers)) < len(emissions), "there are fewer jobs than emissions"
        for n, _ in emissions:
            assert results[n] >= n, f"emission {n} of {key} was answered by an older payload"


@pytest.mark.parametrize("option", _OPTIONS)
async def test_the_last_payload_of_each_key_runs_last_while_workers_are_killed_and_answers_are_lost(
    server: Backend, proxy: Proxy, start_worker: Run, journal: Journal, option: str
) -> None:
    rng = random.Random(11)
    workers = [start_worker(server, lease="1500ms") for _ in range(2)]
    emitted: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    async with EventProvider(proxy.url, reply_timeout=300) as provider:
        emissions: list[Any] = []
        for n in range(240):
            key = f"k{rng.randrange(_KEYS)}"
            emission = provider.emit("work", {"n": n}, idempotency_key=key, **_OPTIONS[option])
            emissions.append((n, key, emission))
            await asyncio.sleep(rng.choice([0, 0.01, 0.03]))  # emissions go on meanwhile
            if n % 30 == 10:
                proxy.strike("add", rng.choice(["before", "after"]), "break")
            if n % 60 == 40:
                workers.pop(0).kill()
                workers.append(start_worker(server, lease="1500ms"))
        results: dict[int, int] = {}
        for n, key, emission in emissions:
            results[n] = (await emission)["n"]
            emitted[key].append((n, emission.job_id))
    _check(journal, emitted, results)
    audit = Audit(server)
    assert audit.problems == []
    assert {record.state for record in audit.jobs.values()} == {"completed"}


async def test_a_kill_of_the_worker_leaves_the_running_job_and_the_next_one_with_the_last_payload(
    server: Backend, start_worker: Run, journal: Journal, gates: Gates
) -> None:
    worker = start_worker(server, lease="1500ms")
    options: dict[str, Any] = {"idempotency_key": "k", "keep_last": True}
    async with EventProvider(server.url, reply_timeout=300) as provider:
        first = provider.emit("hold", {"gate": "open", "n": 0}, **options)
        await until("it runs", lambda: len(journal.runs()) == 1, story=worker.story)
        rest = [provider.emit("hold", {"gate": "open", "n": n}, **options) for n in range(1, 5)]
        for emission in rest:
            await emission.enqueued()
        worker.kill()
        late = provider.emit("hold", {"gate": "open", "n": 5}, **options)
        await late.enqueued()
        other = start_worker(server, lease="1500ms")
        await until("it runs again", lambda: journal.runs()[first.job_id] == 2, story=other.story)
        assert len(journal.runs()) == 1, "the next one waits"
        gates("open")
        await asyncio.gather(first, *rest, late)
    assert {emission.job_id for emission in (*rest, late)} == {late.job_id}
    assert [entry.payload["n"] for entry in journal.read("ended")] == [0, 5]
    assert Audit(server).problems == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_is_killed_in_the_turn_that_ends_the_job_leaves_the_next_one_to_run_once(
    server: Backend,
    proxy: Proxy,
    start_behind: Run,
    start_worker: Run,
    journal: Journal,
    gates: Gates,
    when: When,
) -> None:
    doomed = start_behind(lease="1500ms")
    options: dict[str, Any] = {"idempotency_key": "k", "keep_last": True}
    async with EventProvider(server.url, reply_timeout=300) as provider:
        first = provider.emit("hold", {"gate": "open", "n": 0}, **options)
        await until("it runs", lambda: len(journal.runs()) == 1, story=doomed.story)
        following = provider.emit("hold", {"gate": "later", "n": 1}, **options)
        await following.enqueued()
        proxy.strike("turn", when, doomed.kill)
        gates("open")
        await until("it was killed", lambda: doomed.has_ended, story=doomed.story)
        gates("later")
        other = start_worker(server, lease="1500ms")
        await until("both have run", lambda: following.done() and first.done(), story=other.story)
        await asyncio.gather(first, following)
    assert journal.runs()[following.job_id] == 1
    assert [entry.payload["n"] for entry in journal.read("ended")][-1] == 1
    assert Audit(server).problems == []
