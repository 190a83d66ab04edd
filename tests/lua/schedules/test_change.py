"""Changes: what meets a firing, or a program of another release, decides by what stands in the server."""

from __future__ import annotations

from typing import Any

from drivers.shards import QUEUE, Shard, settle

from eventbus.store.scripting.script_rows import FireRow, ScheduleRow

_EVERY = 60_000


async def _change(shard: Shard, word: Any, name: str = "s", **given: Any) -> str:
    if word == "put":
        slot = shard.now + _EVERY
        given = {"slot": slot, "due": slot, "plan": "{}", "digest": "1", "queue": QUEUE, **given}
    known = (await shard.store.schedules.look(name)).rows
    given = {"seen": known[0].gen if known else "", "seen_slot": known[0].slot if known else "", **given}
    return (await shard.store.schedules.change(word, name, now=shard.now, **given))[0]


async def _state(shard: Shard, name: str = "s") -> ScheduleRow:
    return (await shard.store.schedules.look(name)).rows[0]


async def _fire(shard: Shard, *, overlap: str = "skip", pauses: int = 0) -> list[str]:
    shard.now += _EVERY
    [due] = (await shard.store.schedules.fire([], key_ttl_ms=1000, now=shard.now)).due
    slot = int(due.slot)
    row = FireRow(
        id=due.id, gen=due.gen, slot=due.slot, fire=slot, next=slot + _EVERY, due=slot + _EVERY, wait=0,
        missed=0, queue=QUEUE, has_default=1, job=f"s~{slot}", body="{}", key=f"sched:s:{slot}", print="p",
        overlap=overlap, late=0, pauses=pauses,
    )  # fmt: skip
    return (await shard.store.schedules.fire([row], key_ttl_ms=1000, now=shard.now)).words


async def test_the_same_plan_changes_nothing_and_an_older_release_neither(shard: Shard) -> None:
    assert await _change(shard, "put", owner="app", version=2) == "new"
    gen = (await _state(shard)).gen
    assert await _change(shard, "put", owner="app", version=1) == "same"
    assert await _change(shard, "put", owner="app", version=1, digest="old") == "older"
    assert (await _state(shard)).gen == gen
    assert await _change(shard, "put", owner="app", version=3, digest="new") == "changed"
    assert await _change(shard, "pause", seen=gen, reason="no") == "stale"
    assert await _change(shard, "pause", "nobody", reason="no") == "unknown"


async def test_an_older_release_does_not_make_again_what_a_newer_one_removed(shard: Shard) -> None:
    assert await _change(shard, "put", "x", owner="app", version=1) == "new"
    assert await _change(shard, "put", "y", owner="app", version=1) == "new"
    assert await _change(shard, "put", "y", owner="app", version=2) == "same"
    assert await _change(shard, "remove", "x", owner="app", version=2) == "removed"
    assert await _change(shard, "put", "x", owner="app", version=1) == "older"
    assert await _change(shard, "put", "x", owner="other", version=1) == "new"
    assert await _change(shard, "put", "z", owner="app", version=2) == "new"


async def test_a_removal_by_a_release_that_declares_nothing_counts_too(shard: Shard) -> None:
    assert await _change(shard, "put", owner="app", version=1) == "new"
    assert await _change(shard, "remove", owner="app", version=2) == "removed"
    assert await _change(shard, "put", owner="app", version=1) == "older"


async def test_a_release_does_not_remove_what_a_newer_one_declares(shard: Shard) -> None:
    assert await _change(shard, "put", owner="app", version=1) == "new"
    assert await _change(shard, "put", owner="app", version=3) == "same"
    assert await _change(shard, "remove", owner="app", version=2) == "older"
    assert (await _state(shard)).version == "3"


async def test_a_change_that_meets_a_firing_is_stale(shard: Shard) -> None:
    await _change(shard, "put")
    before = await _state(shard)
    assert await _fire(shard) == ["fired"]
    seen = {"seen": before.gen, "seen_slot": before.slot}
    assert await _change(shard, "put", digest="2", slot=before.slot, **seen) == "stale"
    assert (await _state(shard)).slot != before.slot
    assert await _change(shard, "put", digest="2") == "changed"


async def test_a_resume_that_meets_another_one_and_a_firing_is_stale(shard: Shard) -> None:
    await _change(shard, "put")
    before = await _state(shard)
    assert await _fire(shard) == ["fired"]
    await _change(shard, "pause", reason="by hand")
    seen = {"seen": before.gen, "seen_slot": before.slot}
    assert await _change(shard, "resume", slot=before.slot, due=before.slot, **seen) == "stale"
    assert (await _state(shard)).paused == "by hand"


async def test_a_schedule_that_is_declared_later_gets_its_owner(shard: Shard) -> None:
    await _change(shard, "put")
    assert await _change(shard, "put", owner="app", version=0) == "same"
    assert (await _state(shard)).owner == "app"
    assert await _change(shard, "put", digest="2") == "changed"  # by hand: it stays declared
    assert ((await _state(shard)).owner, (await _state(shard)).version) == ("app", "0")


async def test_a_schedule_that_its_last_job_paused_holds_no_slot(shard: Shard) -> None:
    await _change(shard, "put")
    assert await _fire(shard) == ["fired"]
    answer = await shard.turn()
    assert await _fire(shard, overlap="queue", pauses=1) == ["held"]
    assert (await _state(shard)).held
    await shard.turn(settle(answer.claims[0], answer.token, "failed", "{}", attempts=1))
    shard.now += 1000 - _EVERY
    assert await _fire(shard, overlap="queue", pauses=1) == ["paused"]
    assert (await _state(shard)).held == ""


async def test_a_resume_lets_go_of_a_slot_that_was_held(shard: Shard) -> None:
    await _change(shard, "put")
    await _change(shard, "pause", reason="no")
    await shard.command("HSET", shard.key("schedule", "s"), "held", "1")  # as an older release left it
    later = shard.now + _EVERY
    assert await _change(shard, "resume", slot=later, due=later, queue=QUEUE) == "resumed"
    assert (await _state(shard)).held == ""
