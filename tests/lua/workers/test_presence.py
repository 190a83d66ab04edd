"""announce.lua, leave.lua and survey.lua: which workers run, and what they serve."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import QUEUE, START, Shard, row

from eventbus.store.scripting.script_rows import AnnounceQueue, QueueLook


async def _workers(shard: Shard, queue: str = QUEUE, *, asker: str = "") -> int:
    (look,) = await shard.survey(queue, asker=asker)
    return look.workers


async def test_a_worker_counts_from_its_announcement_on_and_not_once_it_has_left(shard: Shard) -> None:
    assert await _workers(shard) == 0
    await shard.announce(worker="a")
    await shard.announce(worker="b")
    assert await _workers(shard) == 2
    assert await _workers(shard, asker="a") == 1
    assert await shard.leave(worker="a") == 1
    assert await shard.leave(worker="a") == 1  # a repeat changes nothing
    assert await _workers(shard) == 1
    assert await shard.leave(worker="b") == 0
    assert await _workers(shard) == 0


async def test_once_the_last_worker_of_a_pool_has_left_no_wake_goes_to_it(shard: Shard) -> None:
    await shard.announce(worker="a")
    await shard.announce(worker="b")
    await shard.announce("other", worker="c")
    await shard.leave(worker="a")
    await shard.add(row("first"))
    assert await shard.members("wake", "pool") == [QUEUE], "another worker of the pool is there"
    await shard.turn()
    await shard.leave(worker="b")
    await shard.command("DEL", shard.key("wake", "pool"))
    await shard.add(row("second"))
    assert await shard.members("wake", "pool") == []
    assert await shard.members("wake", "other") == [QUEUE]
    assert await shard.members("pools") == ["other"]


async def test_a_worker_that_was_killed_counts_for_20_seconds(shard: Shard) -> None:
    await shard.announce(worker="killed")
    shard.now += 10_000
    await shard.announce(worker="alive")
    shard.now += 10_000
    assert await _workers(shard) == 2
    shard.now += 1
    assert await _workers(shard) == 1
    assert await shard.leave(worker="alive") == 0, "the killed one does not keep the pool"
    assert await shard.members("pools") == []


async def test_a_worker_of_two_pools_counts_once_and_leaves_the_one_before(shard: Shard) -> None:
    await shard.announce("before", worker="a")
    more = [AnnounceQueue(name, name, "") for name in (QUEUE, "event.more")]
    given: dict[str, Any] = {
        "pool": "after",
        "worker": "a",
        "queues": more,
        "unpark": False,
        "now": shard.now,
    }
    await shard.store.announce(**given)
    assert await _workers(shard) == 1
    await shard.store.announce(**given, former="before", left=[QUEUE])
    assert await shard.members("pools") == ["after"]
    assert await shard.members("serving", "before") == []
    assert await _workers(shard, "event.more") == 1


async def test_a_worker_that_serves_fewer_queues_serves_the_others_no_more(shard: Shard) -> None:
    given: dict[str, Any] = {"worker": "a", "unpark": False, "now": shard.now}
    both = [AnnounceQueue(name, name, "") for name in (QUEUE, "event.more")]
    await shard.store.announce(**given, pool="before", queues=both)
    await shard.store.announce(
        **given, pool="after", queues=both[:1], former="before", left=[QUEUE, "event.more"]
    )
    assert await _workers(shard) == 1
    assert await _workers(shard, "event.more") == 0
    assert await shard.command("EXISTS", shard.key("pools", "event.more")) == 0


async def test_a_pool_of_which_another_worker_is_there_stays_when_one_serves_more(shard: Shard) -> None:
    for worker in ("a", "b"):
        await shard.announce("before", worker=worker)
    await shard.announce("after", worker="a", former="before")
    assert await shard.members("pools") == ["after", "before"]
    assert await _workers(shard) == 2


async def test_a_pool_of_a_release_that_names_no_workers_counts_as_one(shard: Shard) -> None:
    await shard.command("ZADD", shard.key("pools", QUEUE), shard.now, "old")
    assert await _workers(shard) == 1
    await shard.announce(worker="a")
    assert await _workers(shard) == 2
    shard.now += 60_001
    assert await _workers(shard) == 0


@pytest.mark.parametrize("step", [-3_600_000, 3_600_000])
async def test_a_step_of_the_clock_makes_no_dead_worker_alive(shard: Shard, step: int) -> None:
    await shard.announce(worker="killed")
    await shard.announce(worker="alive")
    shard.now += step
    await shard.announce(worker="alive")
    assert await _workers(shard) == 1
    assert await shard.members("serving", "pool") == ["alive"]


async def test_what_is_known_of_workers_goes_by_itself(shard: Shard) -> None:
    await shard.announce(worker="a")
    assert 0 < await shard.ttl("serving", "pool") <= 120_000
    assert 0 < await shard.ttl("pools", QUEUE) <= 120_000


async def test_a_survey_tells_what_waits_and_since_when(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("parked"))
    await shard.run("parked")
    shard.now += 5
    await shard.add(row("old", priority=5))
    shard.now += 5
    await shard.add(row("new"))
    await shard.add(row("late", delay=1000), row("later", delay=2000), row("last", delay=3000))
    assert await shard.survey(QUEUE, "event.none") == [
        QueueLook(workers=1, announced=START, waiting=2, parked=1, delayed=3, oldest=START + 5),
        QueueLook(workers=0, announced=0, waiting=0, parked=0, delayed=0, oldest=0),
    ]


async def test_a_survey_of_many_queues_goes_in_several_calls(shard: Shard) -> None:
    await shard.announce()
    looks = await shard.survey(*(f"event.{n}" for n in range(250)), QUEUE)
    assert [look.workers for look in looks] == [0] * 250 + [1]


async def test_foreign_keys_are_nobody_and_nothing(shard: Shard, planted: set[str]) -> None:
    for kind, name in (("serving", "pool"), ("ready", QUEUE), ("parked", QUEUE), ("delayed", QUEUE)):
        await shard.command("SET", shard.key(kind, name), "foreign")
        planted.add(shard.key(kind, name))
    await shard.command("ZADD", shard.key("pools", QUEUE), shard.now, "pool")
    planted.add(shard.key("pools", QUEUE))
    assert await shard.survey() == [QueueLook(0, shard.now, 0, 0, 0, 0)]
