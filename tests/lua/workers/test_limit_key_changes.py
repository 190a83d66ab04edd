"""Limit keys of jobs that change, and limits by key that change: who moves to which lane, and what is
kept.
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, Shard, row, settle, turn_queue

from eventbus.model.limit import Limit
from eventbus.store.calls.control_store import Edit
from eventbus.store.scripting.script_rows import DEBOUNCE, KEEP_LAST, AddRow, SweepQueue, TurnAnswer

_KEPT = SweepQueue(QUEUE, 1000, 3_600_000, 1000, 3_600_000)


async def _limit(shard: Shard, **limit: Any) -> None:
    text = Limit(**limit).to_wire() if limit else ""
    await shard.store.controls.set_limit(QUEUE, text, now=shard.now)


def _row(job: str, lane: str | None = None, **given: Any) -> AddRow:
    return row(job, limit=job[0] if lane is None else lane, **given)


def _ids(answer: TurnAnswer) -> list[str]:
    return [each.id for each in answer.claims]


async def _lane(shard: Shard, key: str) -> list[str]:
    return await shard.command("LRANGE", shard.key("lane", f"{QUEUE}:{key}"), 0, -1)


async def _replace(shard: Shard, job: str, limit: str, *, call: str = "") -> str:
    edit = Edit(
        job, call or secrets.token_hex(4), ("waiting", "delayed", "parked"), body='{"d":"new"}', limit=limit
    )
    return await shard.store.controls.edit(edit, now=shard.now)


async def test_a_payload_that_is_replaced_brings_its_limit_key_along(shard: Shard) -> None:
    await _limit(shard, each=1)
    await shard.add(_row("a1"), _row("a2"), _row("b1"), row("p"))
    for job in ("a1", "p"):
        assert await _replace(shard, job, "b", call=job) == "changed"
        assert await _replace(shard, job, "b", call=job) == "changed", "a repeat changes nothing"
    assert (await shard.survey())[0].waiting == 4
    assert (await shard.record("a1"))["limit"] == "b"
    assert await _lane(shard, "b") == ["b1", "a1!1", "p"]
    answer = await shard.turn()
    assert sorted(_ids(answer)) == ["a2", "b1"]
    second = await shard.turn(*(settle(each, answer.token) for each in answer.claims))
    assert _ids(second) == ["a1"]
    assert [each.body for each in second.claims] == ['{"d":"new"}']


async def test_a_delayed_or_parked_job_waits_in_the_lane_of_its_new_payload(shard: Shard) -> None:
    await _limit(shard, each=1)
    await shard.add(_row("a1", delay=100), _row("a2"))
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token, "parked"), want=0)
    assert [await _replace(shard, job, "c") for job in ("a1", "a2")] == ["changed", "changed"]
    shard.now += 100
    await shard.announce(unpark=True)
    assert _ids(await shard.turn(want=1)) == ["a2"]
    assert await _lane(shard, "c") == ["a1"]


@pytest.mark.parametrize("meeting", [KEEP_LAST, DEBOUNCE])
async def test_the_last_of_merged_emissions_says_in_which_lane_their_job_waits(
    shard: Shard, meeting: int
) -> None:
    times: dict[str, Any] = {"delay": 100, "span": 1000} if meeting == DEBOUNCE else {}
    merging: dict[str, Any] = {"key": "k", "print": "p", "meeting": meeting, **times}
    for job, lane in (("a1", "a"), ("j2", "b"), ("j3", "b"), ("j4", "")):
        await shard.add(_row(job, lane, **merging))
    assert (await shard.record("a1"))["limit"] == "b"
    shard.now += 200
    assert (await shard.turn(want=0)).claims == []
    assert await _lane(shard, "a") == ([] if times else ["a1"])
    assert await _lane(shard, "b") == (["a1"] if times else ["a1!1"])
    assert _ids(await shard.turn()) == ["a1"]
    assert (await shard.turn()).claims == []
    assert await shard.command("EXISTS", shard.key("turns", QUEUE), shard.key("slots", QUEUE)) == 0


async def test_the_next_job_of_a_key_waits_in_the_lane_of_its_last_emission(shard: Shard) -> None:
    merging: dict[str, Any] = {"key": "k", "print": "p", "meeting": KEEP_LAST}
    await shard.add(_row("a1", **merging))
    answer = await shard.turn()
    await shard.add(_row("b2", **merging))
    await shard.add(_row("c3", **merging))
    await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert await _lane(shard, "c") == ["b2"]


async def test_a_limit_that_ends_leaves_the_lanes_their_turns_and_a_new_one_counts_what_runs(
    shard: Shard,
) -> None:
    await shard.announce()
    await _limit(shard, each=1)
    await shard.add(*(_row(f"{key}{n}") for key in "ab" for n in range(6)))
    await shard.turn(want=2)
    await shard.turn()
    await _limit(shard)
    assert await shard.members("wake", "pool") == [QUEUE]
    (lane,) = {job[0] for job in _ids(await shard.turn(want=4))}
    await _limit(shard, each=5)
    other = "b" if lane == "a" else "a"
    assert _ids(await shard.turn()) == [f"{other}{n}" for n in range(1, 5)], "of the first one five run"


async def test_a_rate_of_each_key_that_changes_keeps_the_starts_of_windows_of_its_length(
    shard: Shard,
) -> None:
    await _limit(shard, each_rate=["2/1s", "10/1m"])
    await shard.add(*(_row(f"a{n}") for n in range(9)))
    assert len((await shard.turn()).claims) == 2
    await _limit(shard, each_rate="3/1m")
    assert len((await shard.turn()).claims) == 1
    await _limit(shard, each_rate="4/1s")
    assert len((await shard.turn()).claims) == 4


async def test_a_limit_that_changes_beside_the_rates_of_each_key_leaves_all_its_numbers(shard: Shard) -> None:
    await _limit(shard, each=2, each_rate="3/1m")
    await shard.add(*(_row(f"a{n}") for n in range(9)))
    assert len((await shard.turn()).claims) == 2
    numbers = await shard.command("HGET", shard.key("slots", QUEUE), ":a")
    await _limit(shard, each=9, at_once=9, each_rate="3/1m")
    assert await shard.command("HGET", shard.key("slots", QUEUE), ":a") == numbers
    assert len((await shard.turn()).claims) == 1


async def test_suspects_of_one_key_are_not_above_its_limit_together(shard: Shard) -> None:
    jobs = [f"a{n}" for n in range(9)]
    await shard.add(*(_row(job) for job in jobs))
    for _ in range(3):
        await shard.turn(worker="dead")
        shard.now += 2 * LEASE
        await shard.rescue(max_stalls=20)
    await _limit(shard, each=1)
    for job in jobs:
        assert int((await shard.record(job))["crowd"]) > 1
    assert len((await shard.turn()).claims) == 1
    assert (await shard.turn()).claims == []


async def test_the_sweep_forgets_the_numbers_of_keys_that_have_none_any_more(shard: Shard) -> None:
    await _limit(shard, each_rate="5/1s")
    for first in range(0, 400, 100):
        await shard.add(*(_row(f"j{n}", f"k{n}") for n in range(first, first + 100)))
        answer = await shard.turn(want=200)
        await shard.turn(*(settle(each, answer.token) for each in answer.claims))
    fields = await shard.command("HLEN", shard.key("slots", QUEUE))
    assert fields == 402
    await shard.sweep(_KEPT)
    assert await shard.command("HLEN", shard.key("slots", QUEUE)) == fields
    shard.now += 2000
    for _ in range(10):
        await shard.sweep(_KEPT)
    assert await shard.command("HLEN", shard.key("slots", QUEUE)) < 200


async def test_the_sweep_ends_the_rest_of_a_key_that_may_start_and_knows_lanes_again(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard, each_rate="1/1s")
    await shard.add(_row("a1"), _row("a2"))
    await shard.turn()
    opens = await shard.score("due", "", f"lane:a/{QUEUE}")
    await shard.command("ZREM", shard.shard_key("due"), f"lane:a/{QUEUE}")
    await shard.sweep(_KEPT)
    assert await shard.score("due", "", f"lane:a/{QUEUE}") == opens, "who lost the time writes it again"
    shard.now += 2000
    await shard.command("ZREM", shard.shard_key("due"), f"lane:a/{QUEUE}")
    assert (await shard.turn()).claims == []
    await shard.command("HSET", shard.shard_key("queues"), QUEUE, chr(2))
    await shard.sweep(_KEPT)
    assert await shard.members("wake", "pool") == [QUEUE]
    assert _ids(await shard.turn()) == ["a2"]


async def test_a_claim_that_wants_more_than_all_turns_give_takes_it_from_long_lanes(shard: Shard) -> None:
    await _limit(shard, each=30)
    await shard.add(*(_row(f"a{n}") for n in range(40)), _row("b1"), _row("c1"))
    answer = await shard.turn(want=20)
    assert len(answer.claims) == 20
    assert {"b1", "c1"} < set(_ids(answer))


async def test_each_claim_reads_the_numbers_and_records_of_all_its_lanes_at_once(shard: Shard) -> None:
    async def count(command: str) -> int:
        stats = await shard.command("INFO", "commandstats")
        found = [line for line in stats.splitlines() if line.startswith(f"cmdstat_{command}:")]
        return int(found[0].split("calls=")[1].split(",")[0]) if found else 0

    await _limit(shard, each=4)
    await shard.add(*(_row(f"{key}{n}") for key in "abcdefghij" for n in range(4)))
    names = ("mget", "hset", "hmget", "hincrby", "exists")
    before = [await count(name) for name in names]
    answer = await shard.turn(want=40, queues=[turn_queue()])
    used = {name: await count(name) - old for name, old in zip(names, before, strict=True)}
    assert len(answer.claims) == 40
    assert max(used.values()) <= 6, f"as many for ten lanes as for one: {used}"
