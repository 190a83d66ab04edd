"""Shelves: where claimed jobs wait while a part of their queue is paused (`lib/shelves.lua`)."""

from __future__ import annotations

import pytest
from drivers.shards import QUEUE, Shard, row, settle, turn_queue

from eventbus.store.calls.control_store import Edit

SHELF = "event.shelf"


async def _pause(shard: Shard) -> None:
    await shard.store.controls.pause(SHELF, by="ann", reason="down", now=shard.now)


async def _resume(shard: Shard) -> None:
    await shard.store.controls.resume(SHELF, now=shard.now)


async def _call_resume(shard: Shard, word: str = "resume") -> int:
    """Make one call of a resume: a part of the shelf goes home. Return how many are left."""
    return int(await shard.script("pause", [shard.now, word, SHELF, "", ""]))


async def _shelve(shard: Shard, *jobs: str) -> None:
    """Claim all that waits, and put these jobs on the shelf."""
    answer = await shard.turn()
    assert {each.id for each in answer.claims} >= set(jobs)
    rows = [settle(each, answer.token, "shelved", SHELF) for each in answer.claims if each.id in jobs]
    assert (await shard.turn(*rows, want=0)).lost == []


async def _claimed(shard: Shard, *queues: str) -> list[str]:
    answer = await shard.turn(queues=[turn_queue(queue) for queue in queues or (QUEUE,)])
    return [each.id for each in answer.claims]


async def _count(shard: Shard, queue: str) -> int:
    ((_, waiting, _, _),) = await shard.store.controls.look([queue])
    return waiting


async def _is_forgotten(shard: Shard) -> bool:
    ((_, waiting, _, fields),) = await shard.store.controls.look([SHELF])
    return (waiting, fields, await shard.store.controls.limited()) == (0, {}, [])


async def test_a_shelved_job_waits_until_the_shelf_is_resumed_and_then_in_its_own_queue(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(row("a"), row("b"))
    await _shelve(shard, "a", "b")
    assert await shard.held() == []
    assert (await _count(shard, QUEUE), await _count(shard, SHELF)) == (0, 2)
    assert await _claimed(shard, QUEUE, SHELF) == []
    assert (await shard.record("a"))["state"] == "waiting"
    await _resume(shard)
    assert await _claimed(shard) == ["a", "b"]
    assert await _is_forgotten(shard)


async def test_it_keeps_its_attempts_and_its_stalls_and_has_not_begun(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token, "delayed", "{}", attempts=1), want=0)
    await _shelve(shard, "a")
    record = await shard.record("a")
    assert (record["attempts"], record["queue"]) == ("1", SHELF)
    await _resume(shard)
    (claim,) = (await shard.turn()).claims
    assert (claim.attempts, claim.stalls) == (1, 0)


async def test_a_worker_that_did_not_hear_of_the_resume_gives_the_job_back(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    await _shelve(shard, "a")
    assert (await _count(shard, QUEUE), await _count(shard, SHELF)) == (1, 0)
    assert await _is_forgotten(shard)


async def test_jobs_go_home_in_their_order_and_by_priority_before_those_that_came_later(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(row("a"), row("b"), row("urgent", priority=-5))
    await _shelve(shard, "a", "b", "urgent")
    await _resume(shard)
    await shard.add(row("c"))
    assert await _claimed(shard) == ["urgent", "a", "b", "c"]


async def test_jobs_with_limit_keys_go_home_to_their_lanes(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(*(row(f"{key}{n}", limit=key) for n in range(3) for key in ("x", "y")), row("plain"))
    await _shelve(shard, "x0", "x1", "y0", "y2", "plain")
    assert await _count(shard, SHELF) == 5
    await _resume(shard)
    assert sorted(await _claimed(shard)) == ["plain", "x0", "x1", "y0", "y2"]
    assert await _is_forgotten(shard)
    assert await shard.command("EXISTS", shard.key("slots", SHELF), shard.key("turns", SHELF)) == 0


async def test_a_cancelled_job_leaves_the_shelf(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(row("a"), row("b"), row("c"), row("d", priority=1))
    await _shelve(shard, "a", "b", "c", "d")
    assert await shard.cancel("b", "d") == ["ended", "ended"]
    assert await _count(shard, SHELF) == 2
    await _resume(shard)
    assert await _claimed(shard) == ["a", "c"]
    assert await _is_forgotten(shard)
    assert await shard.command("HGET", shard.shard_key("dead"), SHELF) is None


async def test_many_go_home_in_calls_of_200(shard: Shard) -> None:
    await _pause(shard)
    jobs = [f"j{i:03}" for i in range(450)]
    for first in range(0, 450, 150):
        await shard.add(*(row(each) for each in jobs[first : first + 150]))
    await _shelve(shard, *jobs)
    assert [await _call_resume(shard), await _call_resume(shard)] == [250, 50]
    assert await _call_resume(shard, "move") == 0
    assert await _claimed(shard) == jobs
    assert await _is_forgotten(shard)


async def test_who_goes_on_with_a_resume_leaves_a_new_pause_alone(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(*(row(f"j{i:03}") for i in range(199)))
    await shard.add(row("x"), row("y"))
    await _shelve(shard, *(f"j{i:03}" for i in range(199)), "x", "y")
    assert await _call_resume(shard) == 1
    await _pause(shard)
    assert await _call_resume(shard, "move") == 0
    assert await _count(shard, SHELF) == 1
    assert len(await _claimed(shard, QUEUE, SHELF)) == 200


@pytest.mark.parametrize("again", ["announced", "resumed"])
async def test_resumer_dies_and_the_rest_goes_home(shard: Shard, again: str) -> None:
    await _pause(shard)
    await shard.add(*(row(f"j{i:03}") for i in range(200)))
    await shard.add(row("last"))
    await _shelve(shard, *(f"j{i:03}" for i in range(200)), "last")
    assert await _call_resume(shard) == 1  # and nobody calls again
    assert await shard.store.controls.limited() == [SHELF]
    if again == "announced":
        await shard.announce(unpark=True)
        assert await shard.members("wake", "pool") == []  # the queue was not empty
    else:
        await _resume(shard)
    assert (await _claimed(shard))[-1] == "last"
    assert await _is_forgotten(shard)
    await shard.announce()
    assert await shard.command("HGET", shard.shard_key("queues"), QUEUE) is None


async def test_an_announcement_wakes_the_pool_for_what_went_home_to_an_empty_queue(shard: Shard) -> None:
    await shard.announce()
    await _pause(shard)
    await shard.add(row("a"))
    await _shelve(shard, "a")
    await shard.command(
        "HDEL", shard.key("limits", SHELF), "paused", "by", "reason"
    )  # a resume that was cut off
    await shard.announce()
    assert await _claimed(shard) == ["a"]
    assert await _is_forgotten(shard)


async def test_a_job_that_somebody_delays_on_the_shelf_goes_home_once_it_is_due(shard: Shard) -> None:
    await shard.announce()
    await _pause(shard)
    await shard.add(row("a"))
    await _shelve(shard, "a")
    edit = Edit("a", "call", ("waiting",), due=500)
    assert await shard.store.controls.edit(edit, now=shard.now) == "changed"
    assert await _call_resume(shard) == 0
    assert await _claimed(shard) == []
    shard.now += 500
    assert await _claimed(shard) == []  # it is due, on the shelf
    await shard.announce()
    assert await _claimed(shard) == ["a"]
    assert await _is_forgotten(shard)


async def test_an_answer_that_was_lost_shelves_nothing_twice(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(row("a"))
    (claim,) = (await shard.turn()).claims
    for _ in range(2):
        assert list((await shard.turn(settle(claim, "w:1", "shelved", SHELF), call=2)).lost) == []
    assert await _count(shard, SHELF) == 1
    await _resume(shard)
    assert await _claimed(shard) == ["a"]


async def test_a_job_that_was_cancelled_while_it_ran_ends_instead(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(row("a"))
    (claim,) = (await shard.turn()).claims
    assert await shard.cancel("a") == ["asked"]
    await shard.turn(settle(claim, "w:1", "shelved", SHELF))
    assert await shard.state("a") == "cancelled"
    assert await _count(shard, SHELF) == 0


async def test_the_flags_come_back_with_the_book(shard: Shard) -> None:
    await _pause(shard)
    await shard.add(row("a"))
    await _shelve(shard, "a")
    await shard.command("DEL", shard.shard_key("queues"))
    assert await _claimed(shard, QUEUE, SHELF) == []
    assert sorted(await shard.command("HKEYS", shard.shard_key("queues"))) == ["*", QUEUE, SHELF]
    await _resume(shard)
    assert await _claimed(shard) == ["a"]


async def test_where_workers_serve_the_shelf_its_jobs_stay_and_go_home_once_nobody_does(shard: Shard) -> None:
    await shard.announce("own", SHELF)
    await _pause(shard)
    await shard.add(row("a"), row("b"))
    await _shelve(shard, "a", "b")
    await _resume(shard)
    assert (await _count(shard, QUEUE), await _count(shard, SHELF)) == (0, 2)
    assert await _claimed(shard, SHELF) == ["a", "b"]
    await shard.announce()
    assert await _is_forgotten(shard)
    await _pause(shard)
    await shard.add(row("c"))
    await _shelve(shard, "c")
    await _resume(shard)
    await shard.command("DEL", shard.key("pools", SHELF))  # its last worker has left
    await shard.announce()
    assert await _claimed(shard) == ["c"]
    assert await _is_forgotten(shard)
