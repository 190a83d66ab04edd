"""The end of a job: who is notified, what the key keeps, and how long finished jobs stay."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, START, Shard, add_queue, row, settle, turn_queue

from eventbus.store.scripting.script_rows import SweepQueue

_HOUR = 3_600_000
_WINDOW = 120_000


# replies


async def test_all_outcomes_of_one_call_for_one_emitter_are_one_entry(shard: Shard) -> None:
    for emitter in ("em", "other"):
        await shard.open_replies(emitter)
    await shard.add(row("a"), row("b"))
    await shard.add(row("c"), emitter="other")
    await shard.run("completed", "failed", "completed", text="7")
    assert await shard.replies("em") == [[("a", "completed", 1, "7"), ("b", "failed", 1, "7")]]
    assert await shard.replies("other") == [[("c", "completed", 1, "7")]]


async def test_the_stream_of_an_emitter_that_is_gone_does_not_come_back(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.run("completed")
    assert await shard.command("EXISTS", shard.key("replies", "em")) == 0


async def test_nobody_is_told_of_a_job_that_was_emitted_without_reply(shard: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a", reply=0))
    await shard.run("completed")
    assert await shard.replies() == []


async def test_a_retry_tells_nobody(shard: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a"))
    await shard.run("delayed", attempts=1)
    assert await shard.replies() == []


@pytest.mark.parametrize(("size", "carried"), [(8192, 1), (8193, 0)])
async def test_a_large_outcome_is_announced_and_not_carried(shard: Shard, size: int, carried: int) -> None:
    await shard.open_replies()
    text = "x" * size
    await shard.add(row("a"))
    await shard.run("completed", text=text)
    assert await shard.replies() == [[("a", "completed", carried, text if carried else "")]]
    (outcome,) = await shard.store.look("em", ["a"], join=False)
    assert outcome.text == text


async def test_everybody_who_joined_is_told_once_for_each_emitter(shard: Shard) -> None:
    for emitter in ("em", "two", "three", "silent"):
        await shard.open_replies(emitter)
    await shard.add(row("a", key="k"))
    await shard.add(*(row(f"again{i}", key="k") for i in range(3)))
    await shard.add(*(row(f"b{i}", key="k") for i in range(3)), emitter="two")
    await shard.add(row("quiet", key="k", reply=0), emitter="silent")
    await shard.store.look("two", ["a"], join=True)
    await shard.store.look("three", ["a"], join=True)
    await shard.run("completed")
    for emitter in ("em", "two", "three"):
        assert await shard.replies(emitter) == [[("a", "completed", 1, "1")]]
    assert await shard.replies("silent") == []


async def test_a_joined_job_that_was_emitted_without_reply_tells_those_who_joined(shard: Shard) -> None:
    await shard.open_replies("two")
    await shard.add(row("a", key="k", reply=0))
    await shard.add(row("b", key="k"), emitter="two")
    await shard.run("failed", text="{}")
    assert await shard.replies("two") == [[("a", "failed", 1, "{}")]]


# keys


async def test_the_pointer_takes_the_final_state_and_a_small_outcome_until_its_ttl(shard: Shard) -> None:
    await shard.add(row("a", key="k", print="p"))
    answer = await shard.turn(queues=[turn_queue(key_ttl=5000)])
    await shard.turn(settle(answer.claims[0], answer.token, text="8"), queues=[turn_queue(key_ttl=5000)])
    flat = await shard.command("HGETALL", shard.key("key", f"{QUEUE}:k"))
    pointer = dict(zip(flat[::2], flat[1::2], strict=True))
    assert pointer == {"job": "a", "print": "p", "state": "completed", "text": "8"}
    assert 0 < await shard.ttl("key", f"{QUEUE}:k") <= 5000


@pytest.mark.parametrize("ttl", [100_000_000, 1_000_000_000, 30 * 86_400_000])
async def test_a_long_round_ttl_is_a_ttl(shard: Shard, ttl: int) -> None:
    queues = [turn_queue(key_ttl=ttl)]
    await shard.add(row("a", key="k"))
    answer = await shard.turn(queues=queues)
    await shard.turn(settle(answer.claims[0], answer.token), queues=queues)
    assert ttl - 5000 < await shard.ttl("key", f"{QUEUE}:k") <= ttl


# retention


async def _end(shard: Shard, count: int, state: str = "completed", first: int = 0) -> None:
    await shard.add(*(row(f"{first + i:04}", body="b" * 100) for i in range(count)))
    await shard.run(state, text="r" * 100)


async def _settle_one(shard: Shard, state: str = "completed", **kept: Any) -> None:
    """One more job ends in a turn with this retention, the one in eight that asks what may go."""
    queues = [turn_queue(**kept)]
    await shard.add(row("last"))
    answer = await shard.turn(queues=queues)
    shard.now += -(shard.now + 1) % 8
    await shard.turn(settle(answer.claims[0], answer.token, state), queues=queues)


async def test_jobs_past_their_count_go_oldest_first_with_all_that_is_theirs(shard: Shard) -> None:
    await _end(shard, 5)
    await shard.note("0000", "w:1", "1")
    shard.now += _WINDOW + 1
    await _settle_one(shard, keep_completed=3)
    assert await shard.members("completed") == ["0003", "0004", "last"]
    names = await shard.command("KEYS", f"{shard.store.keys.root}:*:0000")
    assert names == []


async def test_jobs_past_their_age_go(shard: Shard) -> None:
    await _end(shard, 2)
    shard.now += 30 * 60_000
    await _end(shard, 1, first=2)
    shard.now += 30 * 60_000 + 1
    await _settle_one(shard, age_completed=_HOUR)
    assert await shard.members("completed") == ["0002", "last"]


async def test_failed_jobs_have_a_retention_of_their_own(shard: Shard) -> None:
    await _end(shard, 2, "failed")
    await _end(shard, 2, "completed", first=2)
    shard.now += _WINDOW + 1
    await _settle_one(shard, "failed", keep_completed=0, keep_failed=2)
    assert await shard.members("failed") == ["0001", "last"]
    assert len(await shard.members("completed")) == 2  # nothing completed in that call


async def _kept(shard: Shard) -> list[str]:
    """The jobs that completed, also those that go by themselves."""
    return await shard.members("completed") + await shard.members("leaving")


@pytest.mark.parametrize(
    "kept", [{"keep_completed": 0}, {"age_completed": 0}, {"keep_completed": 0, "age_completed": 0}]
)
async def test_no_outcome_younger_than_two_minutes_goes_while_somebody_awaits_it(
    shard: Shard, kept: dict[str, Any]
) -> None:
    await shard.add(row("0000"), attendance="em:1")
    await _end(shard, 2, first=1)
    shard.now += _WINDOW - 8
    await _settle_one(shard, **kept)
    assert len(await _kept(shard)) == 4
    shard.now += 9
    sweep = SweepQueue(QUEUE, kept.get("keep_completed", 9), kept.get("age_completed", 10**12), 9, 10**12)
    assert await shard.sweep(sweep) == 3
    assert await _kept(shard) == ["last"]


async def test_one_call_removes_a_bounded_number(shard: Shard) -> None:
    await _end(shard, 60)
    shard.now += _WINDOW + 1
    await _settle_one(shard, keep_completed=1)
    assert len(await shard.members("completed")) == 61 - 32  # for one end of eight turns, and sixteen more


@pytest.mark.parametrize("ends", [1, 4, 7, 9])
async def test_turns_that_settle_little_keep_up_with_what_they_add(shard: Shard, ends: int) -> None:
    await _end(shard, 30)
    shard.now += _WINDOW + 1
    queues = [turn_queue(keep_completed=30), turn_queue("event.other")]
    for n in range(80):
        await shard.add(*(row(f"more{n:02}-{i}") for i in range(ends)))
        answer = await shard.turn(queues=queues)
        await shard.turn(*(settle(each, answer.token) for each in answer.claims), queues=queues)
        shard.now += _WINDOW + n  # no two at the same place among eight
    assert len(await shard.members("completed")) <= 30 + 16 * ends


async def test_a_sweep_is_bounded_for_each_queue_and_state_and_counts_what_it_removed(shard: Shard) -> None:
    for state in ("completed", "failed", "cancelled"):
        await shard.add(*(row(f"{state}{i}") for i in range(5)))
        await shard.run(state)
    shard.now += _WINDOW + 1
    rows = [SweepQueue(QUEUE, 0, _HOUR, 0, _HOUR), SweepQueue("event.other", 0, 0, 0, 0)]
    assert await shard.sweep(*rows, limit=3) == 9
    assert await shard.sweep(*rows, limit=3) == 6
    assert await shard.sweep(*rows, limit=3) == 0
    names = await shard.command("KEYS", f"{shard.store.keys.root}:job:*")
    assert names == []


async def test_a_sweep_by_age_is_bounded_too(shard: Shard) -> None:
    await _end(shard, 5)
    shard.now += _HOUR + 1
    kept = SweepQueue(QUEUE, 100, _HOUR, 100, _HOUR)
    assert [await shard.sweep(kept, limit=3) for _ in range(3)] == [3, 2, 0]


async def test_a_sweep_leaves_what_is_young_enough_and_what_is_open(shard: Shard) -> None:
    await shard.add(row("ended"))
    await shard.run("completed")
    await shard.add(row("active"), row("waiting"), row("delayed", delay=10 * _HOUR))
    await shard.turn(want=1)
    shard.now += _HOUR
    assert await shard.sweep(SweepQueue(QUEUE, 10, _HOUR, 10, _HOUR)) == 0
    shard.now += 1
    assert await shard.sweep(SweepQueue(QUEUE, 10, _HOUR, 10, _HOUR)) == 1
    assert [await shard.state(each) for each in ("ended", "active", "waiting", "delayed")] == [
        None, "active", "waiting", "delayed",
    ]  # fmt: skip


async def test_times_are_those_of_the_given_clock(shard: Shard) -> None:
    await shard.add(row("a"), queues=[add_queue()])
    await shard.turn()
    assert await shard.lease_end() == START + LEASE


# attempts


@pytest.mark.parametrize("attempts", [1, 254, 255, 300])
@pytest.mark.parametrize("delay", [0, 10])
async def test_attempts_are_counted_past_what_a_byte_holds(shard: Shard, attempts: int, delay: int) -> None:
    await shard.add(row("a"))
    await shard.run("delayed", attempts=attempts, delay=delay)
    assert (await shard.record("a"))["attempts"] == str(attempts)
    shard.now += delay
    (claim,) = (await shard.turn()).claims
    assert claim.attempts == attempts
    assert await shard.rescue() == (LEASE, [], [])
    await shard.turn(settle(claim, f"w:{shard.calls('w')}"), want=0)
    assert (await shard.record("a"))["attempts"] == str(attempts)
