"""Retries and removals among all else that happens to jobs: each job stays in the one place that its state
names.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
from drivers.servers import Server
from drivers.shards import CANCELLED, QUEUE, Shard, row, settle
from models.snapshots import Snapshot

from eventbus.store.connection.connector import Connector
from eventbus.store.scripting.script_rows import SweepQueue
from eventbus.store.store import Store

_ERROR = json.dumps({"type": "ValueError", "message": "no", "attempts": 1})
_ENDS = ("completed", "failed", "cancelled", "delayed", "parked", "waiting")
_OPEN_OR_ENDED = ("waiting", "delayed", "parked", "completed", "failed", "cancelled")


@pytest.fixture
async def lone(scripting: Any) -> AsyncIterator[tuple[Shard, Any]]:
    """A shard on a server that has nothing else, and a client that reads all of it."""
    server = Server()
    server.start()
    store = Store(Connector(server.url), prefix="eb", name="test", scripting=scripting)
    await store.start(deadline=None)
    client = redis.Redis.from_url(server.url, decode_responses=True, encoding_errors="surrogateescape")
    yield Shard(store), client
    client.close()
    await store.aclose()
    server.stop()


class _Life:
    """Random calls on one queue."""

    def __init__(self, shard: Shard, seed: int) -> None:
        self.shard = shard
        self.chance = random.Random(seed)
        self.jobs: list[str] = []
        self.words: Counter[str] = Counter()

    async def step(self) -> None:
        name = self.chance.choice(
            ["add", "add", "run", "run", "hold", "cancel", "retry", "retry", "remove", "sweep", "rescue"]
        )
        await getattr(self, name)()

    def _some(self) -> list[str]:
        return self.chance.sample(self.jobs, min(len(self.jobs), self.chance.randint(1, 4)))

    async def add(self) -> None:
        self.jobs.append(f"j{len(self.jobs)}")
        options: dict[str, Any] = self.chance.choice(
            [
                {},
                {"priority": 3},
                {"delay": 5_000},
                {"limit": "t"},
                {"key": f"k{self.chance.randint(0, 2)}", "print": "p"},
                {"body": "x" * 400},
                {"keep": "0,60000"},
                {"lifo": 1},
            ]
        )
        await self.shard.add(row(self.jobs[-1], **options))

    async def run(self) -> None:
        answer = await self.shard.turn(want=3)
        rows = [
            settle(each, answer.token, self.chance.choice(_ENDS), _ERROR, attempts=1, delay=3_000)
            for each in answer.claims
        ]
        self.shard.now += self.chance.choice([0, 10, 40_000])
        await self.shard.turn(*rows, want=0)

    async def hold(self) -> None:
        """Another worker claims, and never settles."""
        await self.shard.turn(worker="v", want=1)

    async def rescue(self) -> None:
        self.shard.now += 11_000
        await self.shard.rescue()

    async def cancel(self) -> None:
        await self.shard.cancel(*self._some())

    async def retry(self) -> None:
        ids, call = self._some(), str(self.chance.random())
        retry = self.shard.store.controls.retrials.retry
        words = await retry(ids, states=["failed", "cancelled"], call=call, now=self.shard.now)
        again = await retry(ids, states=["failed", "cancelled"], call=call, now=self.shard.now)
        self.words.update(words)
        assert [each for each in words if each == "retried"] == [each for each in again if each == "retried"]

    async def remove(self) -> None:
        self.words.update(
            await self.shard.store.controls.retrials.remove(
                self._some(), states=_OPEN_OR_ENDED, text=CANCELLED, key_ttl_ms=60_000, now=self.shard.now
            )
        )

    async def sweep(self) -> None:
        self.shard.now += 130_000
        await self.shard.sweep(SweepQueue(QUEUE, 5, 600_000, 5, 600_000))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_each_job_is_where_its_state_says_after_each_call(lone: tuple[Shard, Any], seed: int) -> None:
    shard, client = lone
    life = _Life(shard, seed)
    for _ in range(250):
        await life.step()
        Snapshot(client).check()
    assert min(life.words["retried"], life.words["removed"], life.words["unknown"]) > 5, life.words
    shard.now += 700_000
    for _ in range(40):  # what is left runs to its end
        shard.now += 11_000
        await shard.rescue()
        answer = await shard.turn()
        await shard.turn(*(settle(each, answer.token) for each in answer.claims), want=0)
    await shard.announce(unpark=True)
    answer = await shard.turn()
    await shard.turn(*(settle(each, answer.token) for each in answer.claims), want=0)
    left = Snapshot(client)
    left.check()
    assert {record["state"] for record in left.jobs.values()} <= {
        "completed",
        "failed",
        "cancelled",
        "delayed",
    }
