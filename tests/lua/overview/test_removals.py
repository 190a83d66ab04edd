"""remove.lua: a job that nobody runs goes, and nobody who awaits it, or repeats its emission, is left in the
dark.
"""

from __future__ import annotations

import json

import pytest
from drivers.shards import CANCELLED, QUEUE, Shard, row, settle

from eventbus.store.scripting.script_rows import JOIN

_ERROR = json.dumps({"type": "ValueError", "message": "no"})
_DAY = 86_400_000
_ALL = ("waiting", "delayed", "parked", "completed", "failed", "cancelled")


async def remove(shard: Shard, *jobs: str, call: str = "", states: tuple[str, ...] = _ALL) -> list[str]:
    return await shard.store.controls.retrials.remove(
        jobs, states=states, text=CANCELLED, key_ttl_ms=_DAY, call=call, now=shard.now
    )


async def _is_there(shard: Shard, job: str) -> bool:
    return (
        await shard.command("EXISTS", *(shard.key(kind, job) for kind in ("job", "more", "body", "log"))) > 0
    )


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_what_ended_long_ago_is_gone_at_once(shard: Shard, state: str) -> None:
    await shard.add(row("a", body="x" * 300), row("b"))
    await shard.run(state, text=_ERROR)
    shard.now += 120_001
    assert await remove(shard, "a") == ["removed"]
    assert not await _is_there(shard, "a")
    assert await shard.members(state) == ["b"]
    assert await shard.members("leaving") == []
    assert await remove(shard, "a") == ["unknown"]


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_what_ended_just_now_goes_within_four_minutes(shard: Shard, state: str) -> None:
    await shard.add(row("a"), attendance="em")
    await shard.run(state, text=_ERROR)
    assert await remove(shard, "a") == ["removed"]
    assert (await shard.members(state), await shard.members("leaving")) == ([], ["a"])
    assert await shard.add(row("a")) == [], "a repeated add makes no second job"
    (outcome,) = await shard.store.look("em", ["a"], join=False)
    assert outcome.state == state, "its emitter still finds how it ended"
    shard.now += 240_001
    await shard.turn(want=0)
    assert not await _is_there(shard, "a")
    assert await shard.members("leaving") == []


@pytest.mark.parametrize("given", [{}, {"delay": 60_000}, {"priority": 3}, {"limit": "t"}])
async def test_what_waits_is_cancelled_and_who_awaits_it_is_told(shard: Shard, given: dict[str, int]) -> None:
    await shard.open_replies()
    await shard.add(row("a", **given), row("b"))
    assert await remove(shard, "a") == ["removed"]
    assert await shard.replies() == [[("a", "cancelled", 1, CANCELLED)]]
    assert await shard.state("a") == "cancelled"
    shard.now += 60_000
    assert [each.id for each in (await shard.turn()).claims] == ["b"]
    shard.now += 62_000
    await shard.turn(want=0)
    assert not await _is_there(shard, "a")


async def test_a_parked_job_is_removed(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.run("parked")
    assert await remove(shard, "a") == ["removed"]
    assert await shard.members("parked") == []


async def test_claimed_first_a_job_that_runs_stays(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    assert await remove(shard, "a") == ["active"]
    await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert await shard.state("a") == "completed"
    assert await shard.members("completed") == ["a"]


async def test_answer_lost_the_same_call_hears_the_same_and_another_one_that_it_is_gone(shard: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a"))
    assert await remove(shard, "a", call="c") == ["removed"]
    assert await remove(shard, "a", call="c") == ["removed"]
    assert await remove(shard, "a") == ["unknown"]
    assert len(await shard.replies()) == 1


async def test_a_removed_job_is_not_retried(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.run("failed", text=_ERROR)
    await remove(shard, "a")
    assert await shard.store.controls.retrials.retry(["a"], states=["failed"], now=shard.now) == ["unknown"]


async def test_retried_first_the_job_waits_and_is_cancelled(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.run("failed", text=_ERROR)
    await shard.store.controls.retrials.retry(["a"], states=["failed"], now=shard.now)
    assert await remove(shard, "a", states=("failed",)) == ["waiting"]
    assert await remove(shard, "a") == ["removed"]
    assert (await shard.turn()).claims == []


async def test_its_key_is_free_once_it_was_cancelled(shard: Shard) -> None:
    await shard.add(row("a", key="k", print="p"))
    await remove(shard, "a")
    assert await shard.add(row("b", key="k", print="p", meeting=JOIN)) == []
    assert [each.id for each in (await shard.turn()).claims] == ["b"]


async def test_many_go_in_one_call_each_with_its_own_word(shard: Shard) -> None:
    await shard.add(row("done"))
    await shard.run("completed")
    await shard.add(row("waits"), row("late", delay=1))
    assert await remove(shard, "done", "waits", "none", "late", states=("waiting", "delayed")) == [
        *("completed", "removed", "unknown", "removed")
    ]
    assert await shard.members("completed") == ["done"]
    assert await shard.members("cancelled") == []
    assert sorted(await shard.members("leaving", QUEUE)) == ["late", "waits"]
