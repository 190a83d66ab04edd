"""Whatever calls come in whatever order: who follows the changes knows the state of each job, and hears of
each end once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from drivers.shards import LEASE, QUEUE, Shard, row, settle, turn_queue
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree
from drivers.watching.watchers import Watcher

from eventbus.store.calls.control_store import Edit
from eventbus.store.scripting.script_rows import ClaimRow

_ENDS = ("completed", "failed", "cancelled")
_SETTLES = (*_ENDS, "completed", "completed", "delayed", "waiting", "parked", "suspended")


@pytest.fixture
async def watcher(shard: Shard) -> AsyncIterator[Watcher]:
    watcher = Watcher(shard, QUEUE, ROOTS, STEPS)
    yield watcher
    await watcher.aclose()


class _Program:
    """Makes random calls, as emitters, workers and people do."""

    def __init__(self, shard: Shard, seed: int) -> None:
        self.shard = shard
        self.random = random.Random(seed)
        self.jobs: list[str] = []
        self.held: list[tuple[ClaimRow, str, str]] = []

    async def add(self) -> None:
        rows = []
        for _ in range(self.random.randint(1, 4)):
            self.jobs.append(f"em-{len(self.jobs):04}")
            options = self.random.choice(
                [{}, {}, {"priority": 3}, {"delay": 50}, {"key": f"k{self.random.randint(0, 3)}"}]
            )
            if self.random.random() < 0.2:
                options = {"key": "m", "meeting": self.random.choice([2, 3, 4, 5]), "span": 30, "delay": 30}
            rows.append(row(self.jobs[-1], **options))
        await self.shard.add(*rows)

    async def turn(self) -> None:
        worker = self.random.choice(["w", "v"])
        mine = [each for each in self.held if each[2] == worker]
        ended = self.random.sample(mine, self.random.randint(0, len(mine)))
        self.held = [each for each in self.held if each not in ended]
        rows = [self._settle(claim, token) for claim, token, _ in ended]
        queues = [turn_queue(name) for name in (QUEUE, f"{QUEUE}@audit")]
        answer = await self.shard.turn(
            *rows, worker=worker, want=self.random.randint(0, 5), queues=queues, idle=1
        )
        self.held += [(claim, answer.token, worker) for claim in answer.claims]

    def _settle(self, claim: ClaimRow, token: str):  # noqa: ANN202
        state = self.random.choice(_SETTLES)
        text, delay = "{}", 0
        if state == "delayed":
            delay = self.random.choice([0, 40])
        elif state == "suspended":
            text, delay = self.random.choice([("", 40), ("0", -1), ("0", 40)])
        return settle(
            claim, token, state, text, delay=delay, attempts=1 if state in ("failed", "delayed") else ""
        )

    async def wait(self) -> None:
        self.shard.now += self.random.choice([1, 20, 100, LEASE + 1])
        await self.shard.rescue()

    async def cancel(self) -> None:
        await self.shard.cancel(*self.random.sample(self.jobs, min(2, len(self.jobs))))

    async def signal(self) -> None:
        if self.jobs:
            await self.shard.signal(self.random.choice(self.jobs))

    async def edit(self) -> None:
        if self.jobs:
            states = ("waiting", "delayed", "parked")
            due = self.random.choice([0, 60])
            call = str(self.random.random())
            await self.shard.store.controls.edit(
                Edit(self.random.choice(self.jobs), call, states, due=due), now=self.shard.now
            )

    async def unpark(self) -> None:
        await self.shard.announce(unpark=True)


@pytest.mark.parametrize("seed", range(12))
async def test_who_follows_the_changes_knows_the_state_of_each_job(
    shard: Shard, watcher: Watcher, seed: int
) -> None:
    await shard.announce()
    await watcher.begin()
    program = _Program(shard, seed)
    calls = [program.add, program.add, program.turn, program.turn, program.turn, program.wait, program.cancel,
             program.signal, program.edit, program.unpark]  # fmt: skip
    states: dict[str, str] = {}
    ends: Counter[str] = Counter()
    history: dict[str, list[str]] = {}
    for _ in range(60):
        await program.random.choice(calls)()
        for change in await watcher.take():
            assert change.what != "missed"
            if change.job_id and change.what != "removed":
                assert states.get(change.job_id) not in _ENDS, history[change.job_id]
                states[change.job_id] = change.state or ""
                ends[change.job_id] += change.what in _ENDS
                history.setdefault(change.job_id, []).append(f"{change.what}:{change.state}")
        real = {job: await shard.state(job) for job in states}
        assert {
            job: (states[job], real[job], history[job]) for job in states if states[job] != real[job]
        } == {}
    assert set(ends.values()) <= {0, 1}
    assert sum(ends.values()) > 3


@pytest.mark.parametrize("seed", range(6))
async def test_who_follows_the_changes_of_trees_knows_the_state_of_each_member(
    shard: Shard, watcher: Watcher, seed: int
) -> None:
    chance, driver, states = random.Random(seed), TreeDriver(shard, repeats=False), dict[str, str]()
    await watcher.begin()
    await driver.add(make_tree({"a": "", "b": "a", "c": "a", "d": "b c"}, timeout=500.0))
    for _ in range(40):
        held = sorted(driver.held)
        if held and chance.random() < 0.6:
            job = chance.choice(held)
            end = chance.choice(["completed", "completed", "completed", "failed", "waiting", "delayed"])
            await driver.end(end, job)
        elif chance.random() < 0.1:
            await driver.cancel()
        else:
            await driver.claim()
        for change in await watcher.take():
            if change.job_id and change.what != "removed":
                states[change.job_id] = change.state or ""
        real = {job: await shard.state(job) for job in states}
        assert {job: (states[job], real[job]) for job in states if states[job] != real[job]} == {}
