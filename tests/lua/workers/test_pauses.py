"""Paused queues: nothing is claimed there, and all else goes on (`pause.lua`)."""

from __future__ import annotations

from drivers.shards import LEASE, QUEUE, Shard, add_queue, row, settle, turn_queue

OTHER = "event.other"


async def _pause(shard: Shard, queue: str = QUEUE, reason: str = "down") -> None:
    await shard.store.controls.pause(queue, by="ann", reason=reason, now=shard.now)


async def _resume(shard: Shard, queue: str = QUEUE) -> None:
    await shard.store.controls.resume(queue, now=shard.now)


async def _claimed(shard: Shard, *queues: str) -> list[str]:
    answer = await shard.turn(queues=[turn_queue(queue) for queue in queues or (QUEUE,)])
    assert answer.more == []
    return [each.id for each in answer.claims]


async def test_a_claim_passes_a_paused_queue_over_and_takes_from_the_others(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(row("a"), row("b", priority=1))
    await shard.add(row("c"), queues=[add_queue(OTHER)])
    assert await _claimed(shard, QUEUE, OTHER) == ["c"]
    await _resume(shard)
    assert await _claimed(shard, QUEUE, OTHER) == ["a", "b"]


async def test_the_flags_of_other_facts_stay_beside_a_pause(shard: Shard) -> None:
    await shard.add(row("a", priority=1))
    await _pause(shard)
    await _resume(shard)
    assert await _claimed(shard) == ["a"]
    assert await shard.command("HGET", shard.shard_key("queues"), QUEUE) is None
    await _pause(shard)
    await shard.add(row("b", priority=1))
    assert await _claimed(shard) == []
    await _resume(shard)
    assert await _claimed(shard) == ["b"]


async def test_it_is_kept_who_paused_it_why_and_since_when(shard: Shard) -> None:
    await _pause(shard)
    began, shard.now = shard.now, shard.now + 500
    await _pause(shard, reason="still down")
    assert await shard.store.controls.limited() == [QUEUE]
    await shard.add(row("a"))
    ((queue, waiting, _, fields),) = await shard.store.controls.look([QUEUE])
    assert (queue, waiting) == (QUEUE, 1)
    assert fields == {"paused": str(began), "by": "ann", "reason": "still down"}
    await _resume(shard)
    await _resume(shard)  # the answer was lost
    assert await shard.store.controls.limited() == []
    assert (await shard.store.controls.look([QUEUE]))[0].fields == {}
    assert await shard.command("EXISTS", shard.key("limits", QUEUE)) == 0


async def test_a_resume_wakes_the_pools_if_something_waits(shard: Shard) -> None:
    await shard.announce()
    await _pause(shard)
    await _resume(shard)
    assert await shard.members("wake", "pool") == []
    await _pause(shard)
    await shard.add(row("a"))
    await shard.turn()
    assert await shard.members("wake", "pool") == []
    await _resume(shard)
    assert await shard.members("wake", "pool") == [QUEUE]


async def test_no_lone_job_of_a_paused_queue_is_handed_over(shard: Shard) -> None:
    await shard.announce()
    await shard.turn(idle=1)
    await _pause(shard)
    await shard.add(row("a"))
    assert await shard.held() == []
    assert await shard.members("ready") == ["a"]


async def test_what_runs_ends_and_what_waits_can_be_cancelled(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn(want=1)
    await _pause(shard)
    ended = await shard.turn(settle(answer.claims[0], answer.token))
    assert (ended.lost, ended.claims) == ([], [])
    assert await shard.state("a") == "completed"
    assert await shard.cancel("b") == ["ended"]


async def test_retries_rescues_and_due_jobs_become_ready_and_wait(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    await _pause(shard)
    await shard.add(row("c", delay=10))
    retried = settle(answer.claims[0], answer.token, "delayed", delay=20)
    await shard.turn(retried)
    shard.now += 2 * LEASE
    assert (await shard.rescue())[1] == ["b"]
    assert await _claimed(shard) == []
    assert sorted(await shard.members("ready")) == ["a", "b", "c"]
    await _resume(shard)
    assert sorted(await _claimed(shard)) == ["a", "b", "c"]


async def test_a_turn_that_is_repeated_across_a_pause_is_answered_the_same(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await _pause(shard)
    again = await shard.turn(call=shard.calls("w"))
    assert [each.id for each in again.claims] == [each.id for each in answer.claims] == ["a"]


async def test_a_pause_outlives_the_loss_of_the_book(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(row("a"))
    await shard.command("DEL", shard.shard_key("queues"))
    assert await _claimed(shard) == []
    await _resume(shard)
    assert await _claimed(shard) == ["a"]


async def test_a_removed_group_leaves_no_order_behind(shard: Shard) -> None:
    queue = f"{QUEUE}@audit"
    await shard.store.groups.add(QUEUE, "audit")
    await _pause(shard, queue)
    await shard.store.groups.remove(
        QUEUE, "audit", force=False, limit=100, age_completed=1, age_failed=1, key_ttl_ms=1, call="c",
        text="{}", now=shard.now,
    )  # fmt: skip
    assert await shard.store.controls.limited() == []
    assert await shard.command("EXISTS", shard.key("limits", queue)) == 0
    assert await shard.command("HGET", shard.shard_key("queues"), queue) is None
