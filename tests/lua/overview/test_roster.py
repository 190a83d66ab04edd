"""The roster: which queues and workers there are, `ended.lua`, `active.lua` and `workers.lua`."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, Shard, add_queue, row, turn_queue

from eventbus.store.calls.roster import EndedCounts, RosterStore
from eventbus.store.scripting.script_rows import AnnounceQueue

_WEEK = 604_800_000


@pytest.fixture
def roster(shard: Shard) -> RosterStore:
    return shard.store.inspection.roster


async def _announce(shard: Shard, worker: str, *queues: str, **facts: Any) -> None:
    rows = [AnnounceQueue(name, name, "") for name in queues or (QUEUE,)]
    flat = [each for pair in facts.items() for each in pair]
    await shard.store.announce(
        pool="pool", worker=worker, queues=rows, unpark=False, facts=flat, now=shard.now
    )


async def test_a_queue_is_known_by_its_worker_or_by_its_first_job(shard: Shard, roster: RosterStore) -> None:
    assert await roster.queues() == []
    await _announce(shard, "w", QUEUE, "workflow.checkout")
    await shard.add(row("a"), queues=[add_queue("event.lonely")])
    await shard.add(row("b", delay=60_000), queues=[add_queue("event.soon")])
    await shard.add(row("c", delay=90_000), queues=[add_queue("event.later")])
    assert await roster.queues() == [
        *("event.later", "event.lonely", QUEUE, "event.soon", "workflow.checkout")
    ]


async def test_a_paused_queue_and_a_group_are_known_without_jobs_and_workers(
    shard: Shard, roster: RosterStore
) -> None:
    await shard.store.controls.pause("event.paused", by="ann", reason="", now=shard.now)
    await shard.store.groups.add("event.told", "billing")
    assert await roster.queues() == ["event.paused", "event.told@billing"]


async def test_a_queue_that_is_empty_and_not_served_is_forgotten_after_a_week(
    shard: Shard, roster: RosterStore
) -> None:
    await _announce(shard, "w", "event.empty", "event.kept")
    await shard.add(row("a"), queues=[add_queue("event.kept")])
    shard.now += _WEEK - 1
    await shard.sweep()
    assert await roster.queues() == ["event.empty", "event.kept"]
    shard.now += 1
    await shard.sweep()
    assert await roster.queues() == ["event.kept"], "its job is there"
    await shard.cancel("a")
    shard.now += _WEEK
    await shard.sweep()
    assert await roster.queues() == ["event.kept"], "its ended job is there"


async def test_a_worker_is_known_with_what_it_says_of_itself(shard: Shard, roster: RosterStore) -> None:
    await _announce(shard, "w", QUEUE, "event.more", name="shop", host="box", pid=7, version="1.0")
    await shard.add(row("a"), row("b"))
    await shard.turn(want=2)
    await shard.renew(lag=3)
    (look,) = await roster.workers()
    assert (look.id, look.announced, look.held) == ("w", shard.now, 2)
    assert look.fields == {
        "name": "shop",
        "host": "box",
        "pid": "7",
        "version": "1.0",
        "lag": "3",
        "lease": str(LEASE),
        "queues": f"{QUEUE} event.more",
        "started": str(shard.now),
        "announced": str(shard.now),
        "heard": str(shard.now),
    }
    assert 0 < await shard.ttl("worker", "w") <= 600_000


async def test_a_worker_that_ended_is_gone_at_once_and_one_that_was_killed_after_ten_minutes(
    shard: Shard, roster: RosterStore
) -> None:
    await _announce(shard, "ended")
    await _announce(shard, "killed")
    await shard.store.presence.deregister("ended")
    await shard.store.presence.deregister("ended")  # a repeat changes nothing
    assert [each.id for each in await roster.workers()] == ["killed"]
    shard.now += 599_999
    await shard.sweep()
    assert [each.id for each in await roster.workers()] == ["killed"]
    shard.now += 1
    await shard.sweep()
    assert await roster.workers() == []


async def test_an_announcement_of_a_release_that_says_nothing_of_itself_lists_the_worker(
    shard: Shard, roster: RosterStore
) -> None:
    await _announce(shard, "old")
    (look,) = await roster.workers()
    assert (look.id, look.held, look.fields) == ("old", 0, {})


async def test_jobs_are_counted_by_how_they_ended_and_by_the_queue_of_who_runs(
    shard: Shard, roster: RosterStore
) -> None:
    await shard.add(*(row(name) for name in "abcdefg"))
    await shard.add(row("x"), queues=[add_queue("event.other")])
    answer = await shard.turn(want=3)
    assert len(answer.claims) == 3
    await shard.turn(worker="v", queues=[turn_queue("event.other")])
    assert await roster.active() == {QUEUE: 3, "event.other": 1}
    assert await roster.ended([QUEUE, "event.none"]) == [EndedCounts(0, 0, 0), EndedCounts(0, 0, 0)]
    await shard.run("completed", "failed", "cancelled", "failed", worker="u")
    assert await roster.ended([QUEUE]) == [EndedCounts(1, 2, 1)]


async def test_active_jobs_of_many_workers_are_counted_in_several_calls(
    shard: Shard, roster: RosterStore
) -> None:
    await shard.add(*(row(f"job-{n}") for n in range(5)))
    for worker in "abcde":
        await shard.turn(worker=worker, want=1)
    after, *flat = await shard.script("active", ["", 2])
    assert (after, flat) == ("b", [QUEUE, 2])
    after, *flat = await shard.script("active", ["b", 2])
    assert (after, flat) == ("d", [QUEUE, 2])
    assert await shard.script("active", ["d", 2]) == ["", QUEUE, 1]
    assert await roster.active() == {QUEUE: 5}


async def test_foreign_values_in_the_roster_are_nobody(
    shard: Shard, roster: RosterStore, planted: set[str]
) -> None:
    for kind in ("completed", "failed", "cancelled"):
        await shard.command("SET", shard.key(kind, QUEUE), "foreign")
        planted.add(shard.key(kind, QUEUE))
    assert await roster.ended([QUEUE]) == [EndedCounts(0, 0, 0)]
