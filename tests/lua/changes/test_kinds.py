"""Each kind of change is told by the call that makes it, in its order, and by no repeat of that call."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, Shard, add_queue, row, settle, turn_queue
from drivers.watching.watchers import Watcher, shown

from eventbus.store.calls.control_store import Edit


async def test_an_emission_is_added_claimed_and_completed(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    await shard.add(row("a"), row("b"))
    answer = await shard.turn(worker="w7")
    await shard.turn(*(settle(each, answer.token) for each in answer.claims), worker="w7", want=0)
    changes = await watcher.take()
    assert shown(changes) == [
        "added a waiting", "added b waiting", "claimed a active", "claimed b active", "drained",
        "completed a completed", "completed b completed",
    ]  # fmt: skip
    assert {each.queue for each in changes} == {QUEUE}
    assert [each.worker for each in changes] == ["", "", "w7", "w7", "", "w7", "w7"]
    assert [each.attempt for each in changes] == [0, 0, 1, 1, 0, 0, 0]
    assert abs(changes[0].at_ms - changes[-1].at_ms) < 60_000


async def test_an_emission_with_options_is_added_too(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    await shard.add(row("a", priority=3), row("b", key="k"), row("c", delay=50), row("d", key="k"))
    changes = await watcher.take()
    assert shown(changes) == ["added a waiting", "added b waiting", "added c delayed"]
    assert changes[2].due_ms == shard.now + 50


async def test_a_repeat_of_an_add_tells_nothing(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    for _ in range(2):
        await shard.add(row("a"))
        await shard.add(row("b", key="k"))
    assert await watcher.see() == ["added a waiting", "added b waiting"]


async def test_a_job_of_a_group_is_told_with_its_queue(shard: Shard, watcher: Watcher) -> None:
    await shard.announce(group="audit")
    await watcher.begin()
    await shard.add(row("a"))
    changes = await watcher.take()
    assert sorted((each.job_id, each.queue) for each in changes) == [
        ("a", QUEUE),
        ("a@audit", f"{QUEUE}@audit"),
    ]


async def test_a_delayed_job_is_promoted(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a", delay=10))
    await watcher.begin()
    shard.now += 10
    await shard.turn(want=0)
    assert await watcher.see() == ["promoted a waiting"]


async def test_a_retry_tells_its_attempt_its_error_and_when_it_is_due(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await watcher.begin()
    error = '{"type":"ValueError","message":"no such card"}'
    answer = await shard.turn()
    rows = [settle(each, answer.token, "delayed", error, attempts=1, delay=70) for each in answer.claims]
    await shard.turn(*rows, want=0)
    changes = await watcher.take()
    assert shown(changes) == ["claimed a active", "drained", "retried a delayed"]
    last = changes[-1]
    assert (last.attempt, last.due_ms, last.note) == (1, shard.now + 70, "ValueError: no such card")
    shard.now += 70
    await shard.turn()
    assert [(each.what, each.attempt) for each in await watcher.take()] == [
        ("promoted", 0),
        ("claimed", 2),
        ("drained", 0),
    ]


async def test_a_retry_at_once_waits(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await watcher.begin()
    await shard.run("delayed", attempts=1)
    assert await watcher.see() == ["claimed a active", "drained", "retried a waiting"]


@pytest.mark.parametrize(
    ("state", "given", "told"),
    [
        ("delayed", {"attempts": 0, "delay": 50}, "delayed a delayed"),
        ("waiting", {}, "returned a waiting"),
        ("parked", {}, "parked a parked"),
        ("suspended", {"delay": 50, "text": ""}, "suspended a delayed"),
        ("suspended", {"delay": -1, "text": "0"}, "suspended a waiting-children"),
        ("failed", {"attempts": 1}, "failed a failed"),
        ("cancelled", {}, "cancelled a cancelled"),
    ],
)
async def test_what_a_settle_makes_of_a_job_is_told(
    shard: Shard, watcher: Watcher, state: str, given: dict[str, Any], told: str
) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await watcher.begin()
    rows = [settle(each, answer.token, state, **{"text": "{}", **given}) for each in answer.claims]
    for _ in range(2):  # the second one is a repeat
        await shard.turn(*rows, want=0, call=2)
    assert await watcher.see() == [told]


async def test_a_parked_job_is_released_when_it_is_taken_back(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await shard.run("parked")
    await watcher.begin()
    await shard.announce(unpark=True)
    assert await watcher.see() == ["released a waiting"]


async def test_a_signal_releases_who_sleeps(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await shard.run("suspended", text="0", delay=-1)
    await watcher.begin()
    await shard.signal("a", signal="s")
    await shard.signal("a", signal="s")
    assert await watcher.see() == ["released a waiting"]


async def test_who_sleeps_after_a_signal_came_is_released_at_once(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.signal("a")
    await watcher.begin()
    await shard.turn(settle(answer.claims[0], answer.token, "suspended", "0", delay=-1), want=0)
    assert await watcher.see() == ["suspended a waiting-children", "released a waiting"]


async def test_progress_is_told_once(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await watcher.begin()
    for progress in ("40", "40", "80"):
        await shard.note("a", answer.token, progress)
    changes = await watcher.take()
    assert [(*shown([each]), each.note, each.worker) for each in changes] == [
        ("progress a active", "40", "w"), ("progress a active", "80", "w"),
    ]  # fmt: skip


async def test_a_stalled_job_is_told_with_its_worker(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await shard.turn()
    await watcher.begin()
    shard.now += LEASE + 1
    await shard.rescue()
    await shard.rescue()
    changes = await watcher.take()
    assert shown(changes) == ["stalled a waiting"]
    assert changes[0].worker == "w"


async def test_a_job_that_stalled_too_often_is_stalled_and_failed(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await watcher.begin()
    for _ in range(4):
        await shard.turn()
        shard.now += LEASE + 1
        await shard.rescue(max_stalls=1)
    assert (await watcher.see())[-2:] == ["stalled a waiting", "failed a failed"]


async def test_a_waiting_job_that_is_cancelled_is_told_once(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await watcher.begin()
    for _ in range(2):
        await shard.cancel("a", call="c")
    assert await watcher.see() == ["cancelled a cancelled"]


async def test_a_running_job_is_cancelled_when_it_ends(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await watcher.begin()
    await shard.cancel("a")
    assert await watcher.see() == []
    await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert await watcher.see() == ["cancelled a cancelled"]


async def test_what_retention_removes_is_told(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    queues = (turn_queue(keep_completed=1),)
    for job in ("a", "b"):
        await shard.add(row(job))
        answer = await shard.turn(queues=queues)
        await shard.turn(settle(answer.claims[0], answer.token), want=0, queues=queues)
    shard.now += 3_600_000
    for _ in range(8):
        shard.now += 1
        await shard.add(row(f"c{shard.now}"))
        answer = await shard.turn(queues=queues)
        await shard.turn(settle(answer.claims[0], answer.token), want=0, queues=queues)
    told = [each for each in await watcher.see() if each.startswith("removed")]
    assert told[:2] == ["removed a", "removed b"]


async def test_a_queue_is_paused_and_resumed_once(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    for reason in ("they asked", "they asked again"):
        await shard.store.controls.pause(QUEUE, by="ann", reason=reason, now=shard.now)
    for _ in range(2):
        await shard.store.controls.resume(QUEUE, now=shard.now)
    changes = await watcher.take()
    assert [(each.what, each.job_id, each.state, each.note) for each in changes] == [
        ("paused", "", None, "they asked"), ("resumed", "", None, ""),
    ]  # fmt: skip


async def test_a_queue_with_jobs_left_is_not_drained(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"), row("b"))
    await watcher.begin()
    await shard.turn(want=1)
    assert await watcher.see() == ["claimed a active"]
    await shard.turn(want=1)
    assert await watcher.see() == ["claimed b active", "drained"]


async def test_a_job_that_is_handed_over_is_claimed_by_its_add(shard: Shard, watcher: Watcher) -> None:
    await shard.announce()
    await shard.turn(idle=1)
    await watcher.begin()
    await shard.add(row("a"))
    assert await watcher.see() == ["added a waiting", "claimed a active", "drained"]
    for _ in range(2):
        assert await shard.settle_one("a") == "done"
    changes = await watcher.take()
    assert shown(changes) == ["completed a completed"]
    assert changes[0].worker == "w"


async def test_a_job_that_was_handed_over_to_nobody_is_returned(shard: Shard, watcher: Watcher) -> None:
    await shard.announce()
    await shard.turn(idle=1)
    await watcher.begin()
    await shard.add(row("a"))
    shard.now += 1500
    await shard.turn(worker="other")
    assert await watcher.see() == [
        "added a waiting", "claimed a active", "drained", "returned a waiting", "claimed a active", "drained",
    ]  # fmt: skip


async def test_an_edit_delays_or_promotes_a_job(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await watcher.begin()
    await shard.store.controls.edit(Edit("a", "c1", ("waiting",), due=500), now=shard.now)
    await shard.store.controls.edit(Edit("a", "c2", ("delayed",), due=0), now=shard.now)
    await shard.store.controls.edit(Edit("a", "c2", ("delayed",), due=0), now=shard.now)
    assert await watcher.see() == ["delayed a delayed", "promoted a waiting"]


async def test_a_refused_emission_is_not_told(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    queue = (add_queue(max_waiting=0),)
    await shard.add(row("a"), queues=queue)
    await shard.command("SET", shard.key("ready", QUEUE), "another program's")
    await shard.add(row("b"))
    assert await watcher.see() == []


async def test_a_damaged_record_is_told_as_failed(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await shard.cut("a", 5)
    await watcher.begin()
    await shard.turn()
    changes = await watcher.take()
    assert shown(changes) == ["failed a failed"]
    assert changes[0].note.startswith("StoreCorrupt: ")


async def test_a_job_that_is_retried_by_hand_is_added_again_and_one_that_is_removed_is_told(
    shard: Shard, watcher: Watcher
) -> None:
    await shard.add(row("a"), row("b", delay=500))
    await shard.run("failed")
    await watcher.begin()
    for _ in range(2):
        await shard.script("retry", [shard.now, "c1", ["failed"], 1, "a"])
    assert await watcher.see() == ["added a waiting"]
    for _ in range(2):
        await shard.script("remove", [shard.now, 1000, "c2", "{}", ["waiting", "delayed"], 2, "a", "b"])
    told = ["cancelled a cancelled", "cancelled b cancelled", "removed a", "removed b"]
    assert sorted(await watcher.see()) == told
    shard.now += 300_000
    for _ in range(3):
        shard.now += 1000
        await shard.turn(want=0)
    assert await shard.state("a") is None
    assert await watcher.see() == []


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_a_job_that_ended_and_is_removed_by_hand_is_told_at_once_and_once(
    shard: Shard, watcher: Watcher, state: str
) -> None:
    await shard.add(row("a"))
    await shard.run(state)
    await watcher.begin()
    await shard.script("remove", [shard.now, 1000, "c", "{}", [state], 1, "a"])
    assert await watcher.see() == ["removed a"]
    shard.now += 300_000
    for _ in range(3):
        shard.now += 1000
        await shard.turn(want=0)
    assert await watcher.see() == []
