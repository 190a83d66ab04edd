"""Limits by key: lanes, turns and rests (`lanes.lua`, `turns.lua`, `limit_keys.lua`)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, START, Shard, add_queue, row, settle, turn_queue

from eventbus.model.limit import Limit
from eventbus.store.calls.queries import Cursor
from eventbus.store.scripting.script_rows import AddRow, TurnAnswer

OTHER = "event.other"


async def _limit(shard: Shard, **limit: Any) -> None:
    text = Limit(**limit).to_wire() if limit else ""
    await shard.store.controls.set_limit(QUEUE, text, now=shard.now)


def _row(job: str, key: str | None = None, **given: Any) -> AddRow:
    """A job `a1` has the limit key `a`."""
    return row(job, limit=job[0] if key is None else key, **given)


async def _add(shard: Shard, *jobs: str) -> None:
    await shard.add(*(_row(job) for job in jobs))


def _ids(answer: TurnAnswer) -> list[str]:
    return [each.id for each in answer.claims]


async def _number(shard: Shard, key: str) -> int:
    script = "local v = redis.call('HGET', KEYS[1], ARGV[1]) return v and struct.unpack('>I4', v) or 0"
    return await shard.command("EVAL", script, 1, shard.key("slots", QUEUE), f":{key}")


async def _turns(shard: Shard) -> list[str]:
    return await shard.command("LRANGE", shard.key("turns", QUEUE), 0, -1)


async def _resting(shard: Shard) -> list[str]:
    return sorted(await shard.command("SMEMBERS", shard.key("resting", QUEUE)))


async def _waiting(shard: Shard) -> int:
    return (await shard.survey())[0].waiting


async def _is_clean(shard: Shard) -> bool:
    """Nothing of lanes is left, and the book says nothing of them."""
    flags = await shard.command("HGET", shard.shard_key("queues"), QUEUE)
    names = await shard.command("KEYS", f"{shard.store.keys.root}:lane:*")
    return (
        not names and not await _turns(shard) and not await _resting(shard) and not (flags and ord(flags) & 4)
    )


async def test_a_long_lane_of_one_key_delays_no_other(shard: Shard) -> None:
    await _limit(shard, each=5)
    await _add(shard, *(f"a{n:03}" for n in range(100)))
    await _add(shard, "b1", "c1", "c2")
    answer = await shard.turn(want=20)
    assert Counter(each.id[0] for each in answer.claims) == {"a": 5, "b": 1, "c": 2}
    assert [each for each in _ids(answer) if each[0] == "a"] == [f"a{n:03}" for n in range(5)]
    assert (answer.more, await _turns(shard), await _resting(shard)) == ([], [], ["a"])
    assert await _waiting(shard) == 95


async def test_without_a_limit_keys_have_turns_all_the_same(shard: Shard) -> None:
    await _add(shard, *(f"a{n}" for n in range(9)), *(f"b{n}" for n in range(9)))
    first = await shard.turn(want=8)
    assert Counter(each.id[0] for each in first.claims) == {"a": 4, "b": 4}
    assert first.more == [1]
    rest = await shard.turn()
    assert sorted(_ids(rest)) == sorted([f"{key}{n}" for key in "ab" for n in range(4, 9)])
    assert await _is_clean(shard)


async def test_who_frees_a_slot_of_a_key_that_rests_gives_it_turns_and_claims(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard, each=1)
    await _add(shard, "a1", "a2", "a3", "b1")
    answer = await shard.turn()
    assert (sorted(_ids(answer)), await _resting(shard)) == (["a1", "b1"], ["a"])
    await shard.turn()
    assert await shard.members("wake", "pool") == []
    by_id = {each.id: each for each in answer.claims}
    second = await shard.turn(settle(by_id["a1"], answer.token))
    assert (_ids(second), await _number(shard, "a")) == (["a2"], 1)
    await shard.turn(settle(second.claims[0], second.token), want=0)
    assert (await _turns(shard), await shard.members("wake", "pool")) == (["a"], [QUEUE])
    assert _ids(await shard.turn()) == ["a3"]
    assert await _is_clean(shard)


async def test_a_slot_of_a_key_comes_back_with_a_rescue(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard, each=2, at_once=3)
    await _add(shard, "a1", "a2", "a3", "b1", "b2")
    first = await shard.turn(worker="dead")
    assert len(first.claims) == 3
    assert {each.id[0] for each in first.claims} == {"a", "b"}
    shard.now += 2 * LEASE
    await shard.rescue()
    assert (await _number(shard, "a"), await _number(shard, "b"), await _waiting(shard)) == (0, 0, 5)
    again = await shard.turn()
    assert len(again.claims) == 3
    assert await _number(shard, "a") + await _number(shard, "b") == 3


async def test_jobs_of_a_key_start_in_the_order_in_which_they_came(shard: Shard) -> None:
    await _limit(shard, each=1)
    await _add(shard, "a1", "a2", "a3", "a4")
    seen: list[str] = []
    for _ in range(4):
        answer = await shard.turn()
        seen += _ids(answer)
        await _add(shard, f"a{len(seen) + 4}")
        await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert seen == ["a1", "a2", "a3", "a4"]


async def test_what_is_lifo_urgent_or_given_back_goes_before_the_others_of_its_key(shard: Shard) -> None:
    await _limit(shard, each=1)
    await shard.add(_row("a1"), _row("a2", lifo=1), _row("a3", priority=-1), _row("a4", priority=7))
    answer = await shard.turn()
    assert _ids(answer) == ["a3"]
    again = await shard.turn(settle(answer.claims[0], answer.token, "waiting"))
    assert _ids(again) == ["a3"]
    await shard.turn(settle(again.claims[0], again.token), want=0)
    assert _ids(await shard.turn()) == ["a2"]


@pytest.mark.parametrize("body", ["{}", '"' + "x" * 300 + '"'])
async def test_the_key_stays_with_the_record_and_its_outcome_is_read(shard: Shard, body: str) -> None:
    await shard.add(_row("a1", body=body))
    assert (await shard.record("a1"))["limit"] == "a"
    answer = await shard.turn()
    assert [each.body for each in answer.claims] == [body]
    await shard.turn(settle(answer.claims[0], answer.token, text='"done"'), want=0)
    record = await shard.record("a1")
    assert (record["state"], record["result"], record["limit"]) == ("completed", '"done"', "a")
    (look,) = await shard.store.look("em", ["a1"], join=False)
    assert (look.state, look.text) == ("completed", '"done"')


async def test_retries_and_delayed_jobs_come_back_to_their_lane(shard: Shard) -> None:
    await _limit(shard, each=1)
    await shard.add(_row("a1"), _row("a2", delay=50))
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token, "delayed", "{}", delay=100, attempts=1), want=0)
    shard.now += 60
    second = await shard.turn()
    assert _ids(second) == ["a2"]
    shard.now += 100
    assert _ids(await shard.turn()) == []
    third = await shard.turn(settle(second.claims[0], second.token))
    assert [(each.id, each.attempts) for each in third.claims] == [("a1", 1)]


async def test_a_cancelled_job_leaves_a_tombstone_in_its_lane_that_the_claim_drops(shard: Shard) -> None:
    await _limit(shard, each=1)
    await _add(shard, "a1", "a2", "a3")
    answer = await shard.turn()
    assert await shard.cancel("a2") == ["ended"]
    assert await _waiting(shard) == 1
    assert _ids(await shard.turn(settle(answer.claims[0], answer.token))) == ["a3"]
    assert await shard.command("HGET", shard.shard_key("dead"), QUEUE) is None
    assert await shard.cancel("a3") == ["asked"]
    await _add(shard, "b1")
    assert await shard.cancel("b1") == ["ended"]
    assert await _waiting(shard) == 0
    assert (await shard.turn()).claims == []
    assert await _is_clean(shard)


async def test_jobs_without_a_key_and_other_queues_have_their_share(shard: Shard) -> None:
    await _add(shard, *(f"a{n}" for n in range(20)))
    await shard.add(*(row(f"p{n}") for n in range(20)))
    await shard.add(*(row(f"o{n}") for n in range(20)), queues=[add_queue(OTHER)])
    seen: Counter[str] = Counter()
    for _ in range(12):
        seen.update(
            each.id[0] for each in (await shard.turn(want=1, queues=[turn_queue(), turn_queue(OTHER)])).claims
        )
    assert seen["a"] >= 4
    assert seen["p"] + seen["o"] >= 4


async def test_jobs_without_a_key_leave_keys_their_share_of_a_full_queue(shard: Shard) -> None:
    """One call settles a job, and the next one claims: so each second call alone claims."""
    await _limit(shard, at_once=1)
    await shard.add(*(row(f"p{n}") for n in range(40)))
    await _add(shard, *(f"a{n}" for n in range(40)))
    begun = Counter[str]()
    for _ in range(40):
        answer = await shard.turn()
        begun.update(each[0] for each in _ids(answer))
        await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert 15 <= begun["a"] <= 25
    assert begun.total() == 40


async def test_a_rate_of_each_key_holds_and_wakes_when_it_opens(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard, each_rate="3/1s")
    await _add(shard, *(f"a{n}" for n in range(8)), "b1")
    answer = await shard.turn()
    assert Counter(each.id[0] for each in answer.claims) == {"a": 3, "b": 1}
    opens = await shard.score("due", "", f"lane:a/{QUEUE}")
    assert opens is not None
    assert START + 1000 <= opens <= START + 1064
    await shard.turn(*(settle(each, answer.token) for each in answer.claims))
    shard.now = opens - 1
    assert _ids(await shard.turn()) == []
    shard.now = opens
    second = await shard.turn()
    assert _ids(second) == ["a3", "a4", "a5"]


async def test_the_call_after_which_a_key_rests_says_when_it_may_start_again(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard, each=2, each_rate="2/1s")
    await _add(shard, "a1", "a2", "a3", "a4")
    answer = await shard.turn()
    opens = await shard.score("due", "", f"lane:a/{QUEUE}")
    assert answer.next_due == opens
    await shard.command("ZREM", shard.shard_key("due"), f"lane:a/{QUEUE}")
    ended = await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert (ended.claims, ended.next_due) == ([], opens), "who frees a slot of it says so, too"


async def test_a_rescue_that_leaves_a_key_to_its_rate_wakes_who_may_wait_for_that(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard, each=1, each_rate="1/1m")
    await _add(shard, "a1", "a2")
    await shard.turn(worker="dead")
    shard.now += 2 * LEASE
    await shard.rescue()
    assert await shard.members("wake", "pool") == [QUEUE]
    assert (await shard.turn()).next_due == await shard.score("due", "", f"lane:a/{QUEUE}")


async def test_a_limit_that_changes_ends_all_rests(shard: Shard) -> None:
    await _limit(shard, each=1)
    await _add(shard, "a1", "a2", "a3", "a4")
    assert _ids(await shard.turn()) == ["a1"]
    await _limit(shard, each=3)
    assert _ids(await shard.turn()) == ["a2", "a3"]
    await _limit(shard)
    assert _ids(await shard.turn()) == ["a4"]
    await _limit(shard, each=5)
    assert await _number(shard, "a") == 4


async def test_waiting_jobs_of_all_lanes_are_listed_page_by_page(shard: Shard) -> None:
    await _limit(shard, each=1)
    await _add(shard, *(f"{key}{n}" for n in range(5) for key in "abc"))
    await shard.add(row("p"))
    await shard.turn()
    found: list[str] = []
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        page = await shard.store.inspection.jobs(QUEUE, "waiting", cursor=cursor, limit=2)
        found += [each.id for each in page.jobs]
        cursor = page.cursor
    assert found == [f"{key}{n}" for key in "abc" for n in range(1, 5)]
    assert await shard.store.inspection.count(QUEUE, "waiting") == 12


async def test_a_group_that_is_removed_takes_its_lanes_along(shard: Shard) -> None:
    await shard.store.groups.add(QUEUE, "audit")
    queue = f"{QUEUE}@audit"
    await _add(shard, "a1", "a2", "b1", "b2", "c1")
    counts: list[int] = []
    word = "more"
    while word == "more":
        removal = await shard.store.groups.remove(
            QUEUE, "audit", force=False, limit=2, age_completed=1, age_failed=1, key_ttl_ms=1, call="c",
            text="{}", now=shard.now,
        )  # fmt: skip
        word = removal.word
        counts.append(removal.cancelled)
    assert sum(counts) == 5
    assert await shard.command("EXISTS", shard.key("turns", queue), shard.key("slots", queue)) == 0
    assert await shard.command("KEYS", f"{shard.store.keys.root}:lane:{queue}*") == []


async def test_a_suspect_of_a_full_key_waits_for_a_slot(shard: Shard) -> None:
    await _limit(shard, each=1)
    await _add(shard, "a1", "a2")
    for _ in range(3):
        assert _ids(await shard.turn(worker="dead", want=1)) == ["a1"]
        shard.now += 2 * LEASE
        await shard.rescue(max_stalls=20)
    first = await shard.turn(suspects=0)
    assert _ids(first) == ["a2"]
    assert _ids(await shard.turn(is_alone=True)) == []
    await shard.turn(settle(first.claims[0], first.token), want=0)
    assert _ids(await shard.turn(is_alone=True)) == ["a1"]
    assert await _number(shard, "a") == 1


@pytest.mark.parametrize("seed", range(6))
async def test_at_random_no_key_has_more_and_each_job_runs_once(shard: Shard, seed: int) -> None:
    rng = random.Random(seed)
    await _limit(shard, each=2, at_once=5)
    emitted, done = 0, list[str]()
    running: dict[str, tuple[Any, str, str]] = {}
    for step in range(200):
        if step < 100 and rng.random() < 0.6:
            count = rng.choice([1, 2, 9])
            jobs = [f"{rng.choice('aaab' + 'cdef')}{emitted + n:04}" for n in range(count)]
            emitted += count
            await _add(shard, *jobs)
        worker = rng.choice("wx")
        ends = [each for each in running.values() if each[2] == worker and rng.random() < 0.6]
        answer = await shard.turn(
            *(settle(claim, token) for claim, token, _ in ends), worker=worker, want=rng.choice([0, 1, 3, 50])
        )
        assert answer.lost == []
        for claim, _, _ in ends:
            del running[claim.id]
            done.append(claim.id)
        for claim in answer.claims:
            assert claim.id not in running
            running[claim.id] = (claim, answer.token, worker)
        assert len(running) <= 5
        assert max(Counter(job[0] for job in running).values(), default=0) <= 2
        assert set(await _turns(shard)).isdisjoint(await _resting(shard))
    for _ in range(emitted):
        for worker in "wx":
            ends = [each for each in running.values() if each[2] == worker]
            answer = await shard.turn(*(settle(claim, token) for claim, token, _ in ends), worker=worker)
            for claim, _, _ in ends:
                del running[claim.id]
                done.append(claim.id)
            running |= {claim.id: (claim, answer.token, worker) for claim in answer.claims}
        if not running and not await _waiting(shard):
            break
    assert (len(done), len(set(done))) == (emitted, emitted)
    assert await _is_clean(shard)
    assert await shard.command("HKEYS", shard.key("slots", QUEUE)) == ["=", ""]
