"""Delayed jobs: a set for each queue, and one index of when the first of each is due."""

from __future__ import annotations

import pytest
from drivers.shards import QUEUE, START, Shard, add_queue, row, settle, turn_queue

from eventbus.store.scripting.script_rows import SweepQueue

_TWO = [add_queue(), add_queue("event.two")]


async def _due(shard: Shard) -> dict[str, int]:
    flat = await shard.command("ZRANGE", shard.shard_key("due"), 0, -1, "WITHSCORES")
    return {name: int(float(score)) for name, score in zip(flat[::2], flat[1::2], strict=True)}


async def test_the_index_has_the_first_of_each_queue(shard: Shard) -> None:
    await shard.add(row("a", delay=500), row("b", delay=300), row("c", delay=400, queue=2), queues=_TWO)
    assert await _due(shard) == {f"q:{QUEUE}": START + 300, "q:event.two": START + 400}
    await shard.add(row("d", delay=900))
    assert (await _due(shard))[f"q:{QUEUE}"] == START + 300, "it is never moved to a later time by an add"
    assert (await shard.turn(want=0)).next_due == START + 300


async def test_a_turn_promotes_what_is_due_in_every_queue_and_notes_the_next(shard: Shard) -> None:
    rows = [row(f"{queue}{n}", delay=100 * n, queue=queue) for queue in (1, 2) for n in (1, 2, 3)]
    await shard.add(*rows, queues=_TWO)
    shard.now += 200
    answer = await shard.turn(queues=[turn_queue()])
    assert [each.id for each in answer.claims] == ["11", "12"]
    assert await shard.members("ready", "event.two") == ["21", "22"]
    assert await _due(shard) == {f"q:{QUEUE}": START + 300, "q:event.two": START + 300}
    assert answer.next_due == START + 300


async def test_a_call_promotes_100_and_the_next_ones_the_rest(shard: Shard) -> None:
    queues = [add_queue(f"event.{n}") for n in range(5)]
    await shard.add(*(row(f"j{n}", delay=1, queue=1 + n % 5) for n in range(200)), queues=queues)
    await shard.add(*(row(f"k{n}", delay=1, queue=1) for n in range(90)), queues=queues)
    shard.now += 1
    counts: list[int] = []
    while (await shard.turn(want=0)).next_due != -1:
        sizes = [len(await shard.members("ready", f"event.{n}")) for n in range(5)]
        counts.append(sum(sizes))
    assert counts == [100, 200]
    assert sum([len(await shard.members("ready", f"event.{n}")) for n in range(5)]) == 290
    assert await _due(shard) == {}


@pytest.mark.parametrize("way", ["cancelled", "superseded"])
async def test_the_last_delayed_job_that_is_taken_out_takes_the_entry_with_it(shard: Shard, way: str) -> None:
    await shard.add(row("a", delay=100, key="k", print="p"), row("b", delay=200))
    await shard.cancel("b")
    assert await _due(shard) == {f"q:{QUEUE}": START + 100}
    if way == "cancelled":
        await shard.cancel("a")
    else:
        await shard.add(row("c", key="k", print="p", meeting=2))
    assert await _due(shard) == {}


async def test_an_entry_that_is_early_is_moved_by_the_turn_that_meets_it(shard: Shard) -> None:
    await shard.add(row("a", delay=100), row("b", delay=200))
    await shard.cancel("a")
    assert await _due(shard) == {f"q:{QUEUE}": START + 100}
    shard.now += 100
    assert (await shard.turn()).claims == []
    assert await _due(shard) == {f"q:{QUEUE}": START + 200}


async def test_a_retry_is_noted_too(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token, "delayed", attempts=1, delay=700), want=0)
    assert await _due(shard) == {f"q:{QUEUE}": START + 700}


async def test_an_index_that_was_lost_is_made_anew_by_the_next_sweep(shard: Shard) -> None:
    await shard.add(row("a", delay=100))
    await shard.command("DEL", shard.shard_key("due"))
    shard.now += 100
    assert (await shard.turn()).claims == []
    await shard.sweep(SweepQueue(QUEUE, 10, 1000, 10, 1000))
    assert [each.id for each in (await shard.turn()).claims] == ["a"]


async def test_a_name_that_looks_like_a_chore_is_a_queue(shard: Shard) -> None:
    queue = "stop:event"
    await shard.add(row("a", delay=1), queues=[add_queue(queue)])
    shard.now += 1
    assert [each.id for each in (await shard.turn(queues=[turn_queue(queue)])).claims] == ["a"]


async def test_a_claim_tells_whether_the_job_has_begun_before(shard: Shard) -> None:
    await shard.add(row("a"), row("b", delay=10))
    answer = await shard.turn()
    (claim,) = answer.claims
    assert claim.due == START, "it has not"
    await shard.turn(settle(claim, answer.token, "delayed", "", attempts=0, delay=10), want=0)
    shard.now += 10
    answer = await shard.turn()
    found = {each.id: each for each in answer.claims}
    assert (found["a"].due, found["a"].attempts, found["a"].stalls) == (-(START + 10), 0, 0)
    assert found["b"].due == START + 10
    again = await shard.turn(call=shard.calls("w"))
    assert again.claims == answer.claims, "a repeat of the call says the same"
    assert await shard.command("EXISTS", shard.shard_key("log:a")) == 0, "nothing is in its log"


async def _run_all(shard: Shard) -> list[str]:
    """Let workers claim all that is due; return the jobs in the order of the claims."""
    claimed: list[str] = []
    while (answer := await shard.turn()).claims:
        claimed += [each.id for each in answer.claims]
        await shard.turn(*(settle(each, answer.token) for each in answer.claims), want=0)
    return claimed


async def test_jobs_due_in_one_millisecond_run_in_the_order_of_their_adds_whatever_their_ids(
    shard: Shard,
) -> None:
    """Ids of two processes, or of one before and after its restart, do not tell the order of the adds."""
    jobs = [f"{emitter}-{n}" for n in range(150) for emitter in ("m", "a", "z")]
    for first in range(0, len(jobs), 30):
        await shard.add(*(row(job, delay=500) for job in jobs[first : first + 15]))
        shard.now += 10
        await shard.add(*(row(job, delay=490) for job in jobs[first + 15 : first + 30]))
        shard.now -= 10
    shard.now += 499
    assert await _run_all(shard) == []
    shard.now += 1
    assert await _run_all(shard) == jobs


async def test_retries_due_in_one_millisecond_run_in_the_order_in_which_their_attempts_failed(
    shard: Shard,
) -> None:
    await shard.add(*(row(job) for job in "abc"))
    answer = await shard.turn()
    claims = {each.id: each for each in answer.claims}
    for job in "cab":
        await shard.turn(settle(claims[job], answer.token, "delayed", attempts=1, delay=700), want=0)
    shard.now += 700
    assert await _run_all(shard) == ["c", "a", "b"]


async def test_behind_a_full_millisecond_a_job_waits_for_the_next_one(shard: Shard) -> None:
    full = START + 500 + 2047 / 2048
    await shard.add(row("c", delay=500))
    await shard.command("ZADD", shard.key("delayed", QUEUE), repr(full), "c", repr(full + 1), "other")
    await shard.add(*(row(job, delay=500) for job in "ba"))
    await shard.command("ZREM", shard.key("delayed", QUEUE), "other")
    assert await shard.command("ZRANGE", shard.key("delayed", QUEUE), 0, -1) == ["c", "b", "a"]
    assert await _due(shard) == {f"q:{QUEUE}": START + 500}
    shard.now += 501
    assert await _run_all(shard) == ["c"]
    shard.now += 1
    assert await _run_all(shard) == ["b", "a"]


async def test_a_job_that_an_older_release_delayed_is_due_at_its_time(shard: Shard) -> None:
    """Its score is the time alone."""
    await shard.add(row("b", delay=500), row("a", delay=500))
    await shard.command("ZADD", shard.key("delayed", QUEUE), START + 500, "b")
    await shard.add(row("0", delay=500))
    shard.now += 500
    assert await _run_all(shard) == ["b", "a", "0"]


async def test_jobs_that_are_parked_in_one_millisecond_keep_their_order(shard: Shard) -> None:
    jobs = [f"{emitter}-{n}" for n in range(5) for emitter in ("m", "a", "z")]
    await shard.add(*(row(job) for job in jobs))
    answer = await shard.turn()
    await shard.turn(*(settle(each, answer.token, "parked") for each in answer.claims), want=0)
    assert await shard.command("ZRANGE", shard.key("parked", QUEUE), 0, -1) == jobs
