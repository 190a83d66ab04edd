"""look.lua and announce.lua: outcomes by id, and what workers announce about themselves."""

from __future__ import annotations

import pytest
from drivers.shards import QUEUE, Shard, add_queue, row, turn_queue

from eventbus.store import store as store_module

# look


async def test_a_look_answers_in_the_order_asked_and_twice_when_asked_twice(shard: Shard) -> None:
    await shard.add(row("done"), row("bad"))
    await shard.run("completed", "failed", text="5")
    await shard.add(row("open"), row("late", delay=5))
    ids = ["open", "bad", "none", "done", "late", "done"]
    found = await shard.store.look("em", ids, join=False)
    assert [each[:3] for each in found] == [
        ("open", "waiting", ""), ("bad", "failed", "5"), ("none", "unknown", ""), ("done", "completed", "5"),
        ("late", "delayed", ""), ("done", "completed", "5"),
    ]  # fmt: skip


async def test_a_look_that_joins_is_told_the_outcome(shard: Shard) -> None:
    await shard.open_replies("asker")
    await shard.add(row("a"), row("b", reply=0), row("c", delay=0))
    found = await shard.store.look("asker", ["a", "b"], join=True)
    assert [each.state for each in found] == ["waiting", "waiting"]
    await shard.run("completed")
    assert await shard.replies("asker") == [[("a", "completed", 1, "1"), ("b", "completed", 1, "1")]]


async def test_a_look_without_joining_is_told_nothing(shard: Shard) -> None:
    await shard.open_replies("asker")
    await shard.add(row("a"))
    await shard.store.look("asker", ["a"], join=False)
    await shard.run("completed")
    assert await shard.replies("asker") == []


async def test_an_unknown_or_ended_job_is_not_joined(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.run("completed")
    await shard.store.look("asker", ["a", "none"], join=True)
    assert await shard.command("KEYS", f"{shard.store.keys.root}:waiters:*") == []
    assert await shard.state("none") is None


async def test_one_look_is_bounded_in_bytes_and_the_rest_is_asked_for_again(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shard.add(*(row(str(i)) for i in range(5)))
    await shard.run("completed", text="x" * 1000)
    flat = await shard.script("look", ["", "em", "", 1500, 3, "0", 0, "1", 0, "2", 0])
    assert flat[::2] == ["completed", "completed", "later"]
    monkeypatch.setattr(store_module, "PAGE_BYTES", 1500)
    found = await shard.store.look("em", [str(i) for i in range(5)], join=False)
    assert [(each.state, len(each.text or "")) for each in found] == [("completed", 1000)] * 5


@pytest.mark.parametrize("job", ["a:b{c}", "../x", "", "ключ", "x" * 10_000, "*"])
async def test_any_text_can_be_asked_for(shard: Shard, job: str) -> None:
    (found,) = await shard.store.look("em", [job], join=True)
    assert found == (job, "unknown", "")


# announce


async def test_an_announcement_makes_a_group_and_it_stays(shard: Shard) -> None:
    await shard.announce(group="audit")
    shard.now += 10 * 86_400_000
    await shard.add(row("a"))
    assert await shard.members("ready", f"{QUEUE}@audit") == ["a@audit"]


async def test_pools_that_are_silent_for_two_minutes_are_dropped(shard: Shard) -> None:
    await shard.announce("old")
    shard.now += 120_001
    await shard.announce("new")
    assert await shard.members("pools") == ["new"]


async def test_parked_jobs_come_back_in_their_old_place_when_asked_for(shard: Shard) -> None:
    await shard.add(row("a"), row("b", priority=-1))
    await shard.run("parked")
    await shard.add(row("c"))
    assert await shard.announce() == 0
    assert await shard.announce(queue="event.other", unpark=True) == 0
    assert await shard.announce(unpark=True) == 2
    assert await shard.members("ready") == ["b", "a", "c"]
    assert await shard.members("parked") == []
    assert {claim.attempts for claim in (await shard.turn()).claims} == {0}


async def test_parked_jobs_that_come_back_wake_the_pool(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.run("parked")
    await shard.announce(unpark=True)
    assert await shard.members("wake", "pool") == [QUEUE]


async def test_one_announcement_takes_back_a_hundred_jobs_of_a_queue_at_most(shard: Shard) -> None:
    await shard.add(*(row(f"{i:03}") for i in range(120)))
    await shard.run("parked")
    assert await shard.announce(unpark=True) == 100
    assert await shard.announce(unpark=True) == 20


# rearm


async def test_wakes_that_a_worker_puts_back_wake_another_and_do_not_stay_for_ever(shard: Shard) -> None:
    await shard.store.rearm("pool", ["event.a", "event.b"])
    assert await shard.members("wake", "pool") == ["event.a", "event.b"]
    assert 0 < await shard.ttl("wake", "pool") <= 120_000


async def test_a_blocked_read_gets_a_message_before_a_wake(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a"))
    await shard.store.poke("w", "stop")
    reader = shard.store.open_wakes(pool="pool", worker="w")
    assert await reader.wait(4) == ("control", "stop")
    assert await reader.wait(4) == ("wake", QUEUE)
    assert await reader.wait(0) is None
    await reader.aclose()


async def test_the_queues_of_a_turn_are_asked_in_the_order_given(shard: Shard) -> None:
    queues = [add_queue("event.a"), add_queue("event.b")]
    await shard.add(row("a", queue=1), row("b", queue=2), queues=queues)
    answer = await shard.turn(want=1, queues=[turn_queue("event.b"), turn_queue("event.a")])
    assert [claim.id for claim in answer.claims] == ["b"]


async def test_a_job_in_a_format_to_come_is_open_and_is_left_as_it_is(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.command("SETRANGE", shard.key("job", "a"), 0, "0")
    (outcome,) = await shard.store.look("other", ["a"], join=True)
    assert outcome.state == "unlisted"  # its emitter asks again
    (outcome,) = await shard.store.look("", ["a"], join=False)
    assert outcome.state == "parked"
    assert await shard.command("EXISTS", shard.key("more", "a"), shard.key("waiters", "a")) == 0
