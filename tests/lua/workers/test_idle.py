"""Which turns make a worker idle, so that a lone job may be handed to it (`lib/idle.lua`)."""

from __future__ import annotations

from drivers.shards import Shard, add_queue, row, turn_queue


async def _idle(shard: Shard, pool: str = "pool") -> list[str]:
    return await shard.command("ZRANGE", shard.key("idle", pool), 0, -1)


async def test_a_turn_that_claims_or_leaves_something_makes_nobody_idle(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a"), row("b"))
    await shard.turn(want=1, idle=1)
    assert await _idle(shard) == []
    await shard.turn(idle=1)
    assert await _idle(shard) == []
    await shard.turn(idle=1)
    assert await _idle(shard) == ["w"]
    assert 0 < await shard.ttl("idle", "pool") <= 60_000


async def test_a_turn_that_claims_ends_an_offer(shard: Shard) -> None:
    await shard.announce()
    await shard.turn(idle=1)
    assert await _idle(shard) == ["w"]
    await shard.add(row("a"), row("b"))
    await shard.turn(idle=2, want=1)
    assert await _idle(shard) == []
    await shard.turn(idle=2, queues=[turn_queue("event.other")])
    assert await _idle(shard) == []


async def test_a_worker_that_takes_no_more_says_so(shard: Shard) -> None:
    await shard.turn(idle=1)
    await shard.turn(idle=3)
    assert await _idle(shard) == []


async def test_a_turn_that_takes_a_wake_makes_nobody_idle(shard: Shard) -> None:
    await shard.announce(queue="event.other")
    await shard.add(row("a"), row("b"), queues=[add_queue("event.other")])
    assert (await shard.turn(idle=1)).woken == ["event.other"]
    assert await _idle(shard) == []
