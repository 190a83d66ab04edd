"""Random calls around jobs that are handed over: each job has one owner at any time, and ends once.

Two workers offer themselves, read their messages late or never, settle, die and stop; emitters add lone jobs
and others. After each call the places of all jobs are compared with what the test knows.
"""

from __future__ import annotations

import random

import pytest
from drivers.shards import LEASE, QUEUE, Shard, row, settle

from eventbus.store.scripting.script_rows import ClaimRow

WORKERS = ("w", "x")
PATIENCE = 1500


class Life:
    """One shard with two workers, and what each of them believes to run."""

    def __init__(self, shard: Shard, seed: int) -> None:
        self.shard = shard
        self.random = random.Random(seed)
        self.open: set[str] = set()
        self.runs: dict[str, dict[str, str]] = {worker: {} for worker in WORKERS}
        """worker -> the jobs that it runs, with their tokens."""
        self.ended: list[str] = []
        self.handed = 0
        self._count = 0

    async def step(self) -> None:
        often = (self.add, self.add_two, self.turn, self.read, self.end)
        seldom = (self.add, self.renew, self.pass_time, self.announce, self.leave, self.rescue, self.cancel)
        call = self.random.choice(often if self.random.random() < 0.6 else seldom)
        await call(self.random.choice(WORKERS))
        await self.check()

    async def add(self, _: str) -> None:
        self._count += 1
        job = f"j{self._count}"
        self.open.add(job)
        await self.shard.add(row(job))
        if self.random.random() < 0.2:
            await self.shard.add(row(job))  # its answer was lost
        self.handed += job in [*await self.shard.held("w"), *await self.shard.held("x")]

    async def add_two(self, _: str) -> None:
        names = [f"j{self._count + n}" for n in (1, 2)]
        self._count += 2
        self.open.update(names)
        await self.shard.add(*(row(name) for name in names))

    async def turn(self, worker: str) -> None:
        claims = await self.shard.turn(
            worker=worker,
            want=self.random.choice((0, 1, 9, 9)),
            idle=self.random.choice((0, 1, 1, 1, 1, 2, 3)),
        )
        self.runs[worker] |= {claim.id: claims.token for claim in claims.claims}

    async def read(self, worker: str) -> None:
        """Read a message and confirm its job, or lose the message."""
        found = await self.shard.command("ZPOPMIN", self.shard.key("control", worker))
        if not found or not found[0].startswith("job:") or self.random.random() < 0.2:
            return
        job = found[0].removeprefix("job:").split("\n")[0]
        entry = f"hand:{worker}/{job}"
        if await self.shard.command("ZREM", self.shard.shard_key("due"), entry):
            self.runs[worker][job] = f"{worker}:h"

    async def end(self, worker: str) -> None:
        if not self.runs[worker]:
            return
        job, token = self.runs[worker].popitem()
        if token.endswith(":h") and self.random.random() < 0.7:
            word = await self.shard.settle_one(job, worker=worker, pool=self.random.choice(("pool", "")))
            if self.random.random() < 0.3:
                assert await self.shard.settle_one(job, worker=worker) == word
            if word == "done":
                self._note_end(job, "completed")
                return
            assert word == ("long" if await self._is_held(worker, job, token) else "lost")
        claim = ClaimRow(job, 1, "", 0, 0, 0, 0, "")
        answer = await self.shard.turn(settle(claim, token), worker=worker, want=0)
        if job not in answer.lost:
            self._note_end(job, (await self.shard.record(job))["state"])

    async def _is_held(self, worker: str, job: str, token: str) -> bool:
        return (await self.shard.record(job)).get("token") == token and job in await self.shard.held(worker)

    def _note_end(self, job: str, state: str) -> None:
        assert state in ("completed", "cancelled")
        assert job in self.open
        assert job not in self.ended
        self.ended.append(job)
        self.open.remove(job)

    async def cancel(self, _: str) -> None:
        if self.open:
            job = self.random.choice(sorted(self.open))
            if await self.shard.cancel(job) == ["ended"]:
                self._note_end(job, "cancelled")

    async def renew(self, worker: str) -> None:
        lost = await self.shard.renew(*self.runs[worker].items(), worker=worker, calls=(10**6, 10**6))
        for job in lost:
            del self.runs[worker][job]

    async def pass_time(self, _: str) -> None:
        self.shard.now += self.random.choice((1, 100, PATIENCE, LEASE // 2, LEASE + 1))

    async def announce(self, worker: str) -> None:
        await self.shard.announce(worker=worker)

    async def leave(self, worker: str) -> None:
        if self.random.random() < 0.3:
            await self.shard.leave(worker=worker)

    async def rescue(self, _: str) -> None:
        await self.shard.rescue(max_stalls=1000)
        for job in [each for each in self.open if (await self.shard.record(each))["state"] == "cancelled"]:
            self._note_end(job, "cancelled")

    async def check(self) -> None:
        for job in [each for each in self.open if (await self.shard.record(each))["state"] == "cancelled"]:
            self._note_end(job, "cancelled")  # given back after a cancellation
        held = {worker: await self.shard.held(worker) for worker in WORKERS}
        waiting = await self.shard.members("ready", QUEUE)
        places = [*held["w"], *held["x"], *waiting]
        assert sorted(places) == sorted(self.open), "each open job is in one place"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_each_job_has_one_owner_and_ends_once(shard: Shard, seed: int) -> None:
    life = Life(shard, seed)
    await shard.announce()
    await shard.turn(idle=1)
    await life.add("")
    assert life.handed
    for _ in range(120):
        await life.step()
    for worker in WORKERS:  # all die, and another worker runs what is left
        life.runs[worker].clear()
    shard.now += 2 * LEASE
    while life.open:
        await shard.rescue(max_stalls=1000)
        await life.check()
        answer = await shard.turn(worker="last")
        for claim in answer.claims:
            await shard.turn(settle(claim, answer.token), worker="last", want=0)
            life._note_end(claim.id, (await shard.record(claim.id))["state"])
        shard.now += LEASE
    assert await shard.members("ready", QUEUE) == []


async def test_a_turn_answers_a_short_call_whose_answer_was_lost_as_that_call_would(shard: Shard) -> None:
    await shard.announce()
    await shard.turn(idle=1)
    await shard.add(row("a"))
    assert await shard.settle_one("a") == "done"
    claim = ClaimRow("a", 1, "", 0, 0, 0, 0, "")
    assert (await shard.turn(settle(claim, "w:h"))).lost == []
    assert (await shard.turn(settle(claim, "x:h"), worker="x")).lost == ["a"]
