"""Limits over the fleet: how many jobs of a queue run at once (`slots.lua`), and who orders it
(`orders.lua`).
"""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, Shard, add_queue, row, settle, turn_queue

from eventbus.store.scripting.script_rows import AnnounceQueue, TurnAnswer

OTHER = "event.other"
TWO = '{"at_once":2}'
KEEPS = '{"completed":[5,null]}'


async def _limit(shard: Shard, limit: str = TWO, queue: str = QUEUE) -> str:
    return await shard.store.controls.set_limit(queue, limit, now=shard.now)


async def _running(shard: Shard, queue: str = QUEUE) -> int:
    """Return the number that the server counts, and check that it is that of the holds."""
    script = "return struct.unpack('>I4', redis.call('HGET', KEYS[1], ''))"
    return await shard.command("EVAL", script, 1, shard.key("slots", queue))


def _ids(answer: TurnAnswer) -> list[str]:
    return [each.id for each in answer.claims]


async def _add(shard: Shard, *jobs: str, queue: str = QUEUE) -> None:
    await shard.add(*(row(job) for job in jobs), queues=[add_queue(queue)])


async def test_no_more_jobs_run_at_once_than_the_limit_whoever_claims(shard: Shard) -> None:
    await _limit(shard)
    await _add(shard, "a", "b", "c", "d")
    first = await shard.turn(want=1)
    assert (_ids(first), first.more) == (["a"], [1])
    second = await shard.turn(worker="x")
    assert (_ids(second), second.more) == (["b"], [])
    assert _ids(await shard.turn()) == []
    assert await _running(shard) == 2


async def test_the_settle_that_frees_a_slot_claims_in_the_same_call(shard: Shard) -> None:
    await _limit(shard)
    await _add(shard, "a", "b", "c", "d")
    answer = await shard.turn()
    after = await shard.turn(settle(answer.claims[0], answer.token))
    assert (_ids(after), after.more, await _running(shard)) == (["c"], [], 2)


@pytest.mark.parametrize("state", ["completed", "failed", "delayed", "waiting", "parked"])
async def test_a_slot_comes_back_whatever_becomes_of_the_job(shard: Shard, state: str) -> None:
    await _limit(shard)
    await _add(shard, "a", "b", "c")
    answer = await shard.turn()
    text = "{}" if state != "parked" else "version"
    await shard.turn(settle(answer.claims[0], answer.token, state, text, delay=60_000), want=0)
    assert await _running(shard) == 1


async def test_who_frees_a_slot_of_a_full_queue_and_claims_nothing_wakes_the_pools(shard: Shard) -> None:
    await shard.announce()
    await shard.announce("other", worker="x")
    await _limit(shard)
    await _add(shard, "a", "b", "c")
    answer = await shard.turn()
    await shard.turn(worker="x", pool="other")
    assert (await shard.members("wake", "pool"), await shard.members("wake", "other")) == ([], [])
    await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert await shard.members("wake", "pool") == await shard.members("wake", "other") == [QUEUE]
    await shard.command("DEL", shard.key("wake", "pool"))
    await shard.turn(settle(answer.claims[1], answer.token), want=0)
    assert await shard.members("wake", "pool") == [], "it was not full"


async def test_a_full_queue_is_woken_for_by_a_worker_that_does_not_serve_it(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard)
    await _add(shard, "a", "b", "c")
    answer = await shard.turn()
    left = await shard.turn(settle(answer.claims[0], answer.token), queues=[turn_queue(OTHER)], pool="other")
    assert left.claims == []
    assert await shard.members("wake", "pool") == [QUEUE]


async def test_a_rescue_gives_slots_back_and_wakes(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard)
    await _add(shard, "a", "b", "c")
    await shard.turn(worker="dead")
    shard.now += 2 * LEASE
    assert sorted((await shard.rescue())[1]) == ["a", "b"]
    assert await _running(shard) == 0
    assert await shard.members("wake", "pool") == [QUEUE]
    assert _ids(await shard.turn()) == ["a", "b"]


async def test_a_renewal_gives_back_the_slot_of_a_claim_that_nobody_heard_of(shard: Shard) -> None:
    await _limit(shard)
    await _add(shard, "a", "b")
    answer = await shard.turn()
    await shard.renew(("a", answer.token), calls=(1, 0))
    assert (shard.returned, await _running(shard)) == (["b"], 1)
    assert await shard.renew(("a", answer.token), ("b", answer.token), calls=(1, 0)) == ["b"]


async def test_a_slot_comes_back_though_the_record_is_gone(shard: Shard) -> None:
    await _limit(shard)
    await _add(shard, "a")
    await shard.turn()
    await shard.command("DEL", shard.key("job", "a"))
    shard.now += 2 * LEASE
    await shard.rescue()
    assert await _running(shard) == 0


async def test_a_turn_that_is_repeated_takes_no_slot_again(shard: Shard) -> None:
    await _limit(shard)
    await _add(shard, "a", "b", "c")
    answer = await shard.turn(want=1)
    again = await shard.turn(want=1, call=shard.calls("w"))
    assert (_ids(again), await _running(shard)) == (_ids(answer), 1)
    done = settle(answer.claims[0], answer.token)
    await shard.turn(done, want=0)
    await shard.turn(done, want=0, call=shard.calls("w"))
    assert (await shard.turn(done, want=0)).lost == ["a"]
    assert await _running(shard) == 0


async def test_a_cancel_of_a_running_job_keeps_its_slot_until_it_ends(shard: Shard) -> None:
    await _limit(shard)
    await _add(shard, "a", "b", "c")
    answer = await shard.turn()
    assert await shard.cancel("a") == ["asked"]
    assert await _running(shard) == 2
    await shard.turn(settle(answer.claims[0], answer.token, "cancelled"), want=0)
    assert (await shard.state("a"), await _running(shard)) == ("cancelled", 1)


async def test_what_runs_when_a_limit_begins_is_counted(shard: Shard) -> None:
    await shard.announce()
    await shard.turn(idle=1, worker="x")
    await shard.announce(worker="x")
    await _add(shard, "handed")
    await shard.add(row("a", priority=1), row("b"))
    await _add(shard, "o", queue=OTHER)
    answer = await shard.turn(queues=[turn_queue(), turn_queue(OTHER)])
    assert await shard.held("x") == ["handed"]
    await _limit(shard)
    assert await _running(shard) == 3
    await _add(shard, "c")
    assert _ids(await shard.turn()) == []
    by_id = {each.id: each for each in answer.claims}
    await shard.turn(settle(by_id["a"], answer.token), settle(by_id["o"], answer.token), want=0)
    assert await _running(shard) == 2
    assert await shard.settle_one("handed", worker="x") == "long"
    assert await shard.renew(("handed", "x:h"), worker="x") == []
    handed = by_id["a"]._replace(id="handed")
    assert (await shard.turn(settle(handed, "x:h"), worker="x", want=0)).lost == []
    assert await _running(shard) == 1


async def test_what_was_handed_over_when_a_limit_begins_is_taken_back_with_its_slot(shard: Shard) -> None:
    await shard.announce(worker="x")
    await shard.turn(idle=1, worker="x")
    await _add(shard, "handed")
    assert await shard.held("x") == ["handed"]
    await _limit(shard)
    shard.now += 1501
    assert _ids(await shard.turn()) == ["handed"]
    assert await _running(shard) == 1


async def test_a_limit_is_raised_lowered_and_taken_back(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard)
    await _add(shard, *"abcdef")
    await shard.turn()
    await shard.command("DEL", shard.key("wake", "pool"))
    assert await _limit(shard, '{"at_once":3}') == '{"at_once":3}'
    assert await shard.members("wake", "pool") == [QUEUE]
    assert _ids(await shard.turn()) == ["c"]
    await _limit(shard, '{"at_once":1}')
    assert (await _running(shard), _ids(await shard.turn())) == (3, [])
    assert await _limit(shard, "") == ""
    assert await shard.command("EXISTS", shard.key("slots", QUEUE), shard.key("limits", QUEUE)) == 0
    assert _ids(await shard.turn()) == ["d", "e", "f"]
    await _limit(shard, '{"at_once":1}')
    assert await _running(shard) == 6


async def test_a_newer_process_decides_what_is_declared_and_people_decide_over_it(shard: Shard) -> None:
    await shard.announce(limit=TWO, since=200)
    await shard.announce(limit='{"at_once":9}', since=100)
    await _add(shard, *"abcdef")
    assert _ids(await shard.turn()) == ["a", "b"]
    await shard.announce(limit='{"at_once":3}', since=300)
    assert _ids(await shard.turn()) == ["c"]
    await _limit(shard, '{"at_once":4}')
    await shard.announce(limit='{"at_once":9}', since=400)
    assert _ids(await shard.turn()) == ["d"]
    assert await _limit(shard, "") == '{"at_once":9}'
    assert _ids(await shard.turn()) == ["e", "f"]


async def test_the_servers_clock_tells_which_worker_is_newer(shard: Shard) -> None:
    queues = [AnnounceQueue(QUEUE, QUEUE, "", TWO)]
    taken = await shard.store.announce(pool="p", worker="w", queues=queues, unpark=False, now=shard.now)
    assert taken == (0, shard.now, False)  # it was new
    known = (0, taken[1], True)
    again: dict[str, Any] = {"pool": "p", "worker": "w", "queues": queues, "unpark": False, "since": taken[1]}
    assert await shard.store.announce(**again, now=shard.now + 5_000) == known
    shard.now += 10_000
    await shard.announce(limit='{"at_once":3}', since="", worker="v")
    assert await shard.store.announce(**again, now=shard.now) == known
    assert await shard.command("HGET", shard.key("limits", QUEUE), "declared") == '{"at_once":3}'
    # Of a worker of an earlier release, whose own clock was ahead.
    await shard.command("HSET", shard.key("limits", QUEUE), "since", shard.now + 3_600_000)
    await shard.announce(limit='{"at_once":4}', since="", worker="u")
    assert await shard.command("HGET", shard.key("limits", QUEUE), "declared") == '{"at_once":4}'


async def test_a_newer_process_without_a_limit_takes_it_back_for_good(shard: Shard) -> None:
    await shard.announce(limit=TWO, since=200)
    await shard.announce(since=300)
    assert await shard.store.controls.limited() == []
    await shard.announce(limit=TWO, since=200)
    await _add(shard, "a", "b", "c")
    assert _ids(await shard.turn()) == ["a", "b", "c"]
    assert 0 < await shard.ttl("limits", QUEUE) <= 86_400_000
    await shard.announce(limit=TWO, since=400)
    assert (await _running(shard), await shard.ttl("limits", QUEUE)) == (3, -1)


async def test_what_a_program_keeps_is_told_and_changes_no_claim(shard: Shard) -> None:
    async def flags() -> int:
        return ord(await shard.command("HGET", shard.shard_key("queues"), QUEUE) or "\0")

    await shard.announce(keeps=KEEPS, since=200)
    await shard.announce(keeps="", since=100)
    assert await flags() == 64
    (told,) = await shard.store.controls.look(await shard.store.controls.limited())
    assert (told.queue, told.fields["keeps"], told.is_limited) == (QUEUE, KEEPS, False)
    await _add(shard, "a", "b")
    assert _ids(await shard.turn()) == ["a", "b"]
    await shard.announce(keeps=KEEPS, limit=TWO, since=300)
    assert await flags() == 66
    await shard.announce(keeps=KEEPS, since=400)
    assert (await flags(), await shard.ttl("limits", QUEUE)) == (64, -1)
    await shard.announce(since=500)
    assert (await flags(), await shard.store.controls.limited()) == (0, [])
    assert 0 < await shard.ttl("limits", QUEUE) <= 86_400_000


async def test_what_is_kept_is_told_though_somebody_lost_the_book(shard: Shard) -> None:
    await shard.announce(keeps=KEEPS, since=200)
    await shard.command("DEL", shard.shard_key("queues"))
    await _add(shard, "a")
    assert await shard.command("HGET", shard.shard_key("queues"), QUEUE) == chr(64)
    await shard.announce(since=300)
    assert await shard.store.controls.limited() == []


async def test_a_queue_without_a_limit_pays_no_command_beside_one_that_has_one(shard: Shard) -> None:
    async def count() -> int:
        stats = await shard.command("INFO", "commandstats")
        return sum(
            int(line.split("calls=")[1].split(",")[0]) for line in stats.splitlines() if "calls=" in line
        )

    async def cost(queue: str) -> int:
        await _add(shard, *(f"{queue}{n}" for n in range(4)), queue=queue)
        await shard.turn(queues=[turn_queue(queue)], want=1, worker="z")
        before = await count()
        answer = await shard.turn(queues=[turn_queue(queue)])
        await shard.turn(*(settle(each, answer.token) for each in answer.claims), want=0)
        return await count() - before

    await cost("event.first")  # registers the workers
    first = await cost("event.plain")
    await _limit(shard, '{"at_once":100}')
    assert await cost("event.other") == first
    assert await cost(QUEUE) == first + 4, "a look and a note in each of both calls"


async def test_somebody_elses_value_in_the_place_of_the_numbers_closes_the_queue_alone(
    shard: Shard, planted: set[str]
) -> None:
    await _limit(shard)
    await _add(shard, "a")
    await _add(shard, "o", queue=OTHER)
    await shard.command("DEL", shard.key("slots", QUEUE))
    await shard.command("SET", shard.key("slots", QUEUE), "theirs")
    planted.add(shard.key("slots", QUEUE))
    answer = await shard.turn(queues=[turn_queue(), turn_queue(OTHER)])
    assert (_ids(answer), answer.foreign) == (["o"], [QUEUE])


async def test_a_group_that_is_removed_leaves_no_limit(shard: Shard) -> None:
    queue = f"{QUEUE}@audit"
    await shard.announce(group="audit", limit=TWO, since=1)
    assert await shard.store.controls.limited() == [queue]
    await shard.store.groups.remove(
        QUEUE, "audit", force=True, limit=100, age_completed=1, age_failed=1, key_ttl_ms=1, call="c",
        text="{}", now=shard.now,
    )  # fmt: skip
    assert await shard.store.controls.limited() == []
    assert await shard.command("EXISTS", shard.key("slots", queue), shard.key("limits", queue)) == 0
