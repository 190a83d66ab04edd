"""edit.lua: a job that waits is changed where it stands, in one call, and one that runs or has ended
is not.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import pytest
from drivers.shards import QUEUE, Shard, row

from eventbus.store.calls.control_store import Edit


async def edit(shard: Shard, job: str, *states: str, call: str = "", **change: Any) -> str:
    """Change a job; by default it may wait or be delayed."""
    asked = Edit(job, call or secrets.token_hex(4), states or ("waiting", "delayed"), **change)
    return await shard.store.controls.edit(asked, now=shard.now)


def _print(body: str) -> str:
    return hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


async def _claimed(shard: Shard) -> list[str]:
    return [each.id for each in (await shard.turn()).claims]


async def test_a_delayed_job_is_due_now_and_wakes_its_pool(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("later", delay=60_000), row("last", delay=90_000))
    assert await edit(shard, "last", "delayed", due=0) == "changed"
    assert await shard.members("wake", "pool") == [QUEUE]
    assert await shard.members("delayed") == ["later"]
    assert await _claimed(shard) == ["last"]


async def test_a_job_that_waits_for_its_next_attempt_is_tried_now(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.run("delayed", delay=60_000, attempts=1)
    assert await edit(shard, "a", "delayed", due=0) == "changed"
    (claim,) = (await shard.turn()).claims
    assert (claim.id, claim.attempts) == ("a", 1)
    assert await shard.score("due", "", f"q:{QUEUE}") is None


async def test_a_waiting_job_is_delayed_and_its_old_entry_means_nothing(shard: Shard) -> None:
    await shard.add(*(row(name) for name in "abc"))
    assert await edit(shard, "b", due=5_000) == "changed"
    assert await shard.state("b") == "delayed"
    assert await shard.members("ready") == ["a", "c"]
    assert await _claimed(shard) == ["a", "c"]
    shard.now += 5_000
    assert await _claimed(shard) == ["b"]
    assert await shard.command("HGET", shard.shard_key("dead"), QUEUE) is None


async def test_a_job_that_is_moved_often_is_claimed_once(shard: Shard) -> None:
    await shard.add(*(row(name) for name in "abc"))
    for due in (5_000, 0, 5_000, 0):
        assert await edit(shard, "b", due=due) == "changed"
    assert await shard.members("ready") == ["a", "c", "b"]
    assert await _claimed(shard) == ["a", "c", "b"]
    assert await _claimed(shard) == []


async def test_an_earlier_due_time_counts_and_a_later_one(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a", delay=60_000))
    await shard.turn()
    assert await edit(shard, "a", due=1_000) == "changed"
    assert await shard.score("due", "", f"q:{QUEUE}") == shard.now + 1_000
    assert await shard.members("wake", "pool") == [
        QUEUE
    ]  # so that a blocked worker sleeps no longer than that
    assert await edit(shard, "a", due=90_000) == "changed"
    shard.now += 60_000
    assert await _claimed(shard) == []
    shard.now += 30_000
    assert await _claimed(shard) == ["a"]


@pytest.mark.parametrize(("priority", "order"), [(-1, "bacd"), (1, "acdb"), (0, "acdb")])
async def test_another_priority_moves_a_waiting_job(shard: Shard, priority: int, order: str) -> None:
    await shard.add(*(row(name) for name in "abcd"))
    assert await edit(shard, "b", priority=priority) == "changed"
    assert "".join(await shard.members("ready")) == order
    assert "".join(await _claimed(shard)) == order


async def test_a_delayed_job_becomes_due_with_its_new_priority(shard: Shard) -> None:
    await shard.add(row("late", delay=1_000), row("a"))
    assert await edit(shard, "late", priority=-5) == "changed"
    assert await shard.members("delayed") == ["late"]
    shard.now += 1_000
    assert await _claimed(shard) == ["late", "a"]


@pytest.mark.parametrize("old", ["small", "x" * 2_000])
@pytest.mark.parametrize("new", ["other", "y" * 2_000])
async def test_a_body_is_replaced_if_it_is_the_one_that_was_read(shard: Shard, old: str, new: str) -> None:
    await shard.add(row("a", body=old))
    assert await edit(shard, "a", print=_print("else"), body=new) == "other"
    assert await edit(shard, "a", print=_print(old), body=new) == "changed"
    (claim,) = (await shard.turn()).claims
    assert claim.body == new
    assert bool(await shard.command("EXISTS", shard.key("body", "a"))) == (len(new) > 256)


async def test_a_parked_job_gets_another_body_and_stays_parked(shard: Shard) -> None:
    await shard.add(row("a", body="old"))
    await shard.run("parked")
    assert await edit(shard, "a", due=0) == "parked"
    assert await edit(shard, "a", "parked", print=_print("old"), body="new") == "changed"
    assert await shard.announce(unpark=True) == 1
    (claim,) = (await shard.turn()).claims
    assert claim.body == "new"


async def test_what_runs_or_has_ended_is_not_changed(shard: Shard) -> None:
    assert await edit(shard, "nobody", due=0) == "unknown"
    await shard.add(row("a"))
    answer = await shard.turn()
    before = await shard.record("a")
    assert await edit(shard, "a", due=0, priority=3, body="new") == "active"
    assert await shard.record("a") == before
    assert [claim.id for claim in answer.claims] == ["a"]
    await shard.run("completed")
    await shard.add(row("b"))
    await shard.run("completed")
    assert await edit(shard, "b", due=0) == "completed"
    await shard.add(row("c"))
    await shard.cancel("c")
    assert await edit(shard, "c", due=5) == "cancelled"


async def test_a_repeat_changes_nothing(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    assert await edit(shard, "a", call="one", due=5_000) == "changed"
    assert await edit(shard, "a", call="two", due=0) == "changed"
    before = await shard.record("a")
    assert await edit(shard, "a", call="two", due=0) == "changed"
    assert await shard.record("a") == before
    answer = await shard.turn()
    assert [each.id for each in answer.claims] == ["b", "a"]
    assert await edit(shard, "a", call="two", due=0) == "changed"  # the first answer was lost; by now it runs
    assert await shard.held() == ["a", "b"]


async def test_a_cancel_ends_a_job_that_was_moved(shard: Shard) -> None:
    await shard.add(*(row(name) for name in "abc"))
    await edit(shard, "b", priority=7)
    assert await shard.cancel("b") == ["ended"]
    assert await _claimed(shard) == ["a", "c"]


async def test_a_full_server_refuses_it_whole(shard: Shard) -> None:
    await shard.add(row("a", delay=9_000))
    before = await shard.record("a")
    await shard.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Exception, match="OOM"):
            await edit(shard, "a", due=0)
    finally:
        await shard.command("CONFIG", "SET", "maxmemory", "0")
    assert await shard.record("a") == before
    assert await shard.members("delayed") == ["a"]
