"""ungroup.lua removes a group and its waiting jobs, a part of them in each call."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import CANCELLED, LEASE, QUEUE, Shard, row, settle, turn_queue

from eventbus.errors import StoreRefused
from eventbus.store.scripting.script_rows import GroupRemoval

GROUP = f"{QUEUE}@audit"
_DAY = 86_400_000
_HOUR = 3_600_000


async def _remove(shard: Shard, *, limit: int = 100, force: bool = False) -> GroupRemoval:
    return await shard.store.groups.remove(
        QUEUE,
        "audit",
        force=force,
        limit=limit,
        age_completed=_HOUR,
        age_failed=7 * _DAY,
        key_ttl_ms=_DAY,
        call="call",
        text=CANCELLED,
        now=shard.now,
    )


async def _remove_all(shard: Shard, **given: Any) -> list[int]:
    """How many jobs each call cancelled."""
    counts: list[int] = []
    last = None
    while last is None or last.word == "more":
        last = await _remove(shard, **given)
        counts.append(last.cancelled)
    assert last.word == "done"
    return counts


async def _end_groups(shard: Shard, *states: str) -> None:
    """Claim from the group alone, and settle."""
    answer = await shard.turn(queues=[turn_queue(GROUP)])
    rows = [settle(claim, answer.token, state) for claim, state in zip(answer.claims, states, strict=True)]
    await shard.turn(*rows, want=0, queues=[turn_queue(GROUP, 0)])


@pytest.fixture
async def grouped(shard: Shard) -> Shard:
    await shard.store.groups.add(QUEUE, "audit")
    await shard.store.groups.add(QUEUE, "other")
    return shard


async def test_no_emission_makes_a_job_for_a_group_that_was_removed(grouped: Shard) -> None:
    assert await _remove_all(grouped) == [0]
    await grouped.add(row("a"))
    assert await grouped.members("ready", GROUP) == []
    assert await grouped.members("ready", f"{QUEUE}@other") == ["a@other"]
    assert await grouped.command("SMEMBERS", grouped.shard_key("grouped")) == [QUEUE]


async def test_a_queue_whose_last_group_is_removed_has_none(shard: Shard) -> None:
    await shard.store.groups.add(QUEUE, "audit")
    assert await _remove_all(shard) == [0]
    assert await shard.command("EXISTS", shard.shard_key("grouped"), shard.key("groups", QUEUE)) == 0
    await shard.add(row("a"))
    assert await shard.members("ready") == ["a"]


async def test_what_waits_is_delayed_or_parked_ends_as_cancelled_and_its_waiters_hear_it(
    grouped: Shard,
) -> None:
    await grouped.open_replies("asker")
    await grouped.add(row("parked", key="k", print="p"))
    await _end_groups(grouped, "parked")
    await grouped.add(row("waits", body="x" * 100), row("late", delay=_HOUR))
    await grouped.store.look("asker", ["waits@audit", "late@audit", "parked@audit"], join=True)
    assert sum(await _remove_all(grouped)) == 3
    for job in ("waits", "late", "parked"):
        assert await grouped.state(f"{job}@audit") == "cancelled"
        assert await grouped.state(f"{job}@other") in ("waiting", "delayed")
    told = [(job, state) for entry in await grouped.replies("asker") for job, state, *_ in entry]
    assert sorted(told) == [(f"{job}@audit", "cancelled") for job in ("late", "parked", "waits")]
    assert await grouped.members("ready", GROUP) == await grouped.members("parked", GROUP) == []
    assert await grouped.members("delayed") == ["late"]
    assert await grouped.members("delayed", f"{QUEUE}@other") == ["late@other"]
    assert await grouped.command("HGET", grouped.key("key", f"{GROUP}:k"), "state") == "cancelled"


async def test_what_runs_ends_as_it_ends(grouped: Shard) -> None:
    await grouped.add(row("a"))
    answer = await grouped.turn(queues=[turn_queue(GROUP)])
    assert await _remove_all(grouped) == [0]
    await grouped.turn(settle(answer.claims[0], answer.token), want=0, queues=[turn_queue(GROUP, 0)])
    assert await grouped.state("a@audit") == "completed"


async def test_what_a_dead_worker_held_is_put_back_and_goes_with_the_next_removal(grouped: Shard) -> None:
    await grouped.add(row("a"))
    await grouped.turn(queues=[turn_queue(GROUP)])
    assert await _remove_all(grouped) == [0]
    grouped.now += LEASE
    assert (await grouped.rescue())[1] == ["a@audit"]
    assert sum(await _remove_all(grouped)) == 1
    assert await grouped.state("a@audit") == "cancelled"


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_a_call_is_bounded_and_the_next_goes_on(grouped: Shard, limit: int) -> None:
    for i in range(4):
        await grouped.add(row(f"w{i}"), row(f"d{i}", delay=1000 + i))
    counts = await _remove_all(grouped, limit=limit)
    assert sum(counts) == 8
    assert max(counts) <= 2 * limit
    assert await grouped.members("delayed", f"{QUEUE}@other") == [f"d{i}@other" for i in range(4)]
    assert await grouped.members("delayed", GROUP) == []


async def test_a_removal_that_was_given_up_is_finished_by_another(grouped: Shard) -> None:
    await grouped.add(*(row(f"w{i}") for i in range(5)))
    assert (await _remove(grouped, limit=2)).word == "more"
    await grouped.add(row("after"))
    assert await grouped.state("after@audit") is None, "it is removed from the first call on"
    assert sum(await _remove_all(grouped)) == 3
    assert sum(await _remove_all(grouped)) == 0


async def test_delayed_jobs_of_other_queues_are_left_alone(shard: Shard) -> None:
    far = [row(f"x{i}", delay=_HOUR + i) for i in range(200)]
    await shard.add(*far)
    await shard.store.groups.add(QUEUE, "audit")
    await shard.add(row("soon", delay=1), row("last", delay=2 * _HOUR))
    assert await _remove_all(shard) == [2]
    assert len(await shard.members("delayed")) == 202
    assert await shard.members("delayed", GROUP) == []


async def test_a_group_that_is_served_is_not_removed_unless_forced(grouped: Shard) -> None:
    await grouped.add(row("a"))
    await grouped.announce(group="audit", worker="a")
    await grouped.announce(group="audit", worker="b")
    assert await _remove(grouped) == GroupRemoval("served", 2, 0)
    assert await grouped.state("a@audit") == "waiting"
    await grouped.add(row("b"))
    assert await grouped.state("b@audit") == "waiting"
    assert sum(await _remove_all(grouped, force=True)) == 2
    await grouped.add(row("c"))
    assert await grouped.state("c@audit") is None
    await grouped.announce(group="audit")
    await grouped.add(row("d"))
    assert await grouped.state("d@audit") == "waiting", "its worker has made it again"


async def test_what_ended_in_a_group_goes_by_itself(grouped: Shard) -> None:
    await grouped.add(row("good", body="x" * 300), row("bad"), row("late", delay=_HOUR))
    await _end_groups(grouped, "completed", "failed")
    grouped.now += _HOUR // 2
    assert sum(await _remove_all(grouped)) == 1
    for state in ("completed", "failed", "cancelled"):
        assert await grouped.members(state, GROUP) == []
    assert await grouped.state("good@audit") == "completed"
    for kind in ("job", "body"):
        assert 0 < await grouped.ttl(kind, "good@audit") <= _HOUR // 2
    assert 6 * _DAY < await grouped.ttl("job", "bad@audit") <= 7 * _DAY
    assert 6 * _DAY < await grouped.ttl("job", "late@audit") <= 7 * _DAY
    assert await grouped.ttl("job", "late") == -1


async def test_what_ended_just_now_is_kept_for_whoever_may_ask(grouped: Shard) -> None:
    await grouped.add(row("a"))
    await _end_groups(grouped, "completed")
    grouped.now += 2 * _HOUR
    await _remove_all(grouped)
    assert 0 < await grouped.ttl("job", "a@audit") <= 120_000


async def test_strays_do_not_hold_a_removal_up(grouped: Shard, planted: set[str]) -> None:
    await grouped.add(row("a"))
    for place in ("ready+", "parked", "delayed"):
        await grouped.command("ZADD", grouped.key(place, GROUP), 0, "none", 1, "a")
    for place in ("ready", "suspects"):
        await grouped.command("RPUSH", grouped.key(place, GROUP), "none", "a", "a!1")
    assert sum(await _remove_all(grouped)) == 1
    assert await grouped.state("a") == "waiting"
    assert await grouped.members("ready") == ["a"]


async def test_a_full_server_lets_a_removal_through(shard: Shard) -> None:
    await shard.store.groups.add(QUEUE, "audit")
    await shard.add(row("a", key="k", print="p"), row("b", delay=_HOUR))
    await shard.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert sum(await _remove_all(shard)) == 2
    finally:
        await shard.command("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.parametrize("kind", ["ready", "suspects"])
async def test_a_group_whose_line_has_another_programs_value_is_left_alone(
    grouped: Shard, planted: set[str], kind: str
) -> None:
    place = grouped.key(kind, GROUP)
    planted.add(place)
    await grouped.command("SET", place, "junk")
    with pytest.raises(StoreRefused, match="has a value of another program") as caught:
        await _remove_all(grouped)
    assert place in str(caught.value)
    assert "audit" in await grouped.store.groups.of(QUEUE), "nothing was removed"
