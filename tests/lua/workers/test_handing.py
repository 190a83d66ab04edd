"""Lone jobs that an add hands to an idle worker, and that the worker settles by a short call
(`lib/handing.lua`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.shards import CANCELLED, LEASE, QUEUE, Shard, add_queue, row, settle

from eventbus.store.calls.queries import Cursor
from eventbus.store.scripting.script_rows import ClaimRow, StallRow, SweepQueue

PATIENCE = 1500


@pytest.fixture
async def idle(shard: Shard) -> Shard:
    """A shard with one worker, `w` of `pool`, that said that it is idle."""
    await shard.announce()
    await shard.open_replies()
    assert (await shard.turn(idle=1)).claims == []
    return shard


async def _messages(shard: Shard, worker: str = "w") -> list[str]:
    return await shard.command("ZRANGE", shard.key("control", worker), 0, -1)


async def _idle(shard: Shard, pool: str = "pool") -> list[str]:
    return await shard.command("ZRANGE", shard.key("idle", pool), 0, -1)


async def _read(shard: Shard, worker: str = "w") -> str:
    """Read a message as the worker does, and confirm the job."""
    message = (await shard.command("ZPOPMIN", shard.key("control", worker)))[0]
    job = message.removeprefix("job:").split("\n")[0]
    assert await shard.command("ZREM", shard.shard_key("due"), f"hand:{worker}/{job}") == 1
    return message


async def _due(shard: Shard) -> list[str]:
    return await shard.members("due", "")


# handing over


async def test_a_lone_job_goes_to_an_idle_worker_with_all_that_it_needs(idle: Shard) -> None:
    await idle.add(row("a"))
    assert await _messages(idle) == [f'job:a\n{QUEUE}\n{idle.now}\n{{"d":"a"}}']
    record = await idle.record("a")
    assert (record["state"], record["token"]) == ("active", "w:h")
    assert await idle.command("EXISTS", idle.key("ready", QUEUE), idle.key("wake", "pool")) == 0
    assert await idle.score("due", "", "hand:w/a") == idle.now + PATIENCE


async def test_an_offer_is_good_for_one_job(idle: Shard) -> None:
    await idle.add(row("a"))
    await idle.add(row("b"))
    assert (await idle.held(), await idle.members("ready"), await _idle(idle)) == (["a"], ["b"], [])
    assert await idle.members("wake", "pool") == [QUEUE]


async def test_the_worker_that_was_idle_last_is_given_the_job(idle: Shard) -> None:
    idle.now += 10
    await idle.announce(worker="late")
    await idle.turn(worker="late", idle=1)
    await idle.add(row("a"))
    await idle.add(row("b"))
    assert (await idle.held("late"), await idle.held("w")) == (["a"], ["b"])


_UNUSUAL: list[tuple[str, Callable[[Shard], Awaitable[Any]]]] = [
    ("two rows", lambda shard: shard.add(row("a"), row("b"))),
    ("a key", lambda shard: shard.add(row("a", key="k"))),
    ("a delay", lambda shard: shard.add(row("a", delay=5))),
    ("a priority", lambda shard: shard.add(row("a", priority=1))),
    ("lifo", lambda shard: shard.add(row("a", lifo=1))),
    ("a limit of waiting jobs", lambda shard: shard.add(row("a"), queues=[add_queue(max_waiting=5)])),
    ("a large body", lambda shard: shard.add(row("a", body="x" * 8193))),
    ("a line feed in the id", lambda shard: shard.add(row("a\nb"))),
    ("another queue", lambda shard: shard.add(row("a"), queues=[add_queue("event.other")])),
]


@pytest.mark.parametrize(("_what", "add"), _UNUSUAL, ids=[what for what, _ in _UNUSUAL])
async def test_what_is_unusual_waits_in_its_queue(
    idle: Shard, _what: str, add: Callable[[Shard], Any]
) -> None:
    await add(idle)
    assert (await idle.held(), await _idle(idle), await _messages(idle)) == ([], ["w"], [])


async def test_a_job_does_not_overtake_those_that_wait(idle: Shard) -> None:
    await idle.add(row("a", priority=3))
    await idle.add(row("b"))
    assert await idle.held() == []
    await idle.add(row("c"), row("d"), queues=[add_queue("event.other")])
    await idle.announce(queue="event.other")
    await idle.add(row("e"), queues=[add_queue("event.other")])
    assert await idle.held() == []


async def test_a_repeated_add_hands_nothing_over_again(idle: Shard) -> None:
    await idle.add(row("a"))
    await idle.turn(worker="x", idle=1)
    await idle.add(row("a"))
    assert (await idle.held(), await idle.held("x"), await _idle(idle)) == (["a"], [], ["x"])


async def test_a_body_over_256_bytes_travels_too(idle: Shard) -> None:
    body = json.dumps("é" * 400, ensure_ascii=False)
    await idle.add(row("a", body=body))
    assert (await _messages(idle))[0].split("\n", 3)[3] == body


async def test_a_worker_that_was_not_heard_for_10_s_is_given_nothing(idle: Shard) -> None:
    idle.now += 9_000
    await idle.announce()
    idle.now += 10_000
    await idle.add(row("a"))
    assert await idle.held() == ["a"]
    await idle.turn(worker="x", idle=1)
    idle.now += 10_001
    await idle.add(row("b"))
    assert (await idle.held("x"), await idle.members("ready")) == ([], ["b"])


async def test_an_announcement_makes_nobody_idle(shard: Shard) -> None:
    await shard.announce()
    assert await _idle(shard) == []


async def test_a_worker_that_leaves_or_is_unregistered_is_given_nothing(idle: Shard) -> None:
    await idle.leave()
    assert await _idle(idle) == []
    await idle.turn(worker="x", idle=1)
    await idle.announce()
    await idle.script("deregister", ["x"])
    await idle.add(row("a"))
    assert (await idle.held("x"), await idle.members("ready")) == ([], ["a"])


async def test_a_foreign_value_in_the_way_leaves_the_job_in_its_queue(idle: Shard) -> None:
    await idle.command("SET", idle.key("control", "w"), "foreign")
    await idle.add(row("a"))
    assert (await idle.held(), await idle.members("ready"), await _due(idle)) == ([], ["a"], [])
    await idle.command("SET", idle.key("idle", "pool"), "foreign")
    await idle.add(row("b"))
    assert await idle.members("ready") == ["a", "b"]
    await idle.command("DEL", idle.key("idle", "pool"), idle.key("control", "w"))


# the short settle


@pytest.fixture(params=["once", "twice"])
def settle_one(request: pytest.FixtureRequest, shard: Shard) -> Callable[..., Awaitable[str]]:
    """The short settle; also sent a second time, with the same answer."""

    async def call(job: str, **given: Any) -> str:
        answer = await shard.settle_one(job, **given)
        if request.param == "twice":
            assert await shard.settle_one(job, **given) == answer
        return answer

    return call


async def test_a_settled_job_is_as_one_that_a_turn_settled(idle: Shard, settle_one: Any) -> None:
    await idle.add(row("a"))
    await _read(idle)
    idle.now += 30
    assert await settle_one("a", text='{"r":1}') == "done"
    record = await idle.record("a")
    assert (record["state"], record["result"]) == ("completed", '{"r":1}')
    assert await idle.members("completed") == ["a"]
    assert await idle.replies() == [[("a", "completed", 1, '{"r":1}')]]
    assert (await idle.held(), await _due(idle), await _idle(idle)) == ([], [], ["w"])
    (ended,) = (await idle.store.inspection.jobs(QUEUE, "completed", cursor=Cursor(), limit=5)).jobs
    assert ended.id == "a"


async def test_a_large_result_is_kept_and_told(idle: Shard, settle_one: Any) -> None:
    await idle.add(row("a"))
    text = json.dumps("x" * 5000)
    assert await settle_one("a", text=text) == "done"
    assert (await idle.record("a"))["result"] == text
    assert await idle.replies() == [[("a", "completed", 1, text)]]


async def test_a_worker_that_has_no_pool_is_not_idle(idle: Shard, settle_one: Any) -> None:
    await idle.add(row("a"))
    assert await settle_one("a", pool="") == "done"
    assert await _idle(idle) == []


async def test_what_is_held_otherwise_is_lost(idle: Shard, settle_one: Any) -> None:
    assert await settle_one("none") == "done"  # removed by retention: nothing is left to settle
    await idle.add(row("a"))
    idle.now += PATIENCE
    await idle.turn(worker="x")
    assert await idle.held("x") == ["a"]
    assert await settle_one("a") == "lost"
    answer = await idle.turn(worker="x", call=idle.calls("x"))
    await idle.turn(settle(answer.claims[0], answer.token), worker="x", want=0)
    assert await settle_one("a") == "lost"
    assert (await idle.record("a"))["state"] == "completed"


@pytest.mark.parametrize("make", ["cancel", "note", "join"])
async def test_what_became_unusual_is_left_to_a_turn(idle: Shard, settle_one: Any, make: str) -> None:
    await idle.add(row("a"))
    await _read(idle)
    if make == "cancel":
        assert await idle.cancel("a") == ["asked"]
    elif make == "note":
        assert await idle.note("a", "w:h", "0.5") == []
    else:
        await idle.store.look("other", ["a"], join=True)
    expected = "done" if make == "note" else "long"  # progress changes nothing about the end
    assert await settle_one("a") == expected
    assert await idle.held() == ([] if make == "note" else ["a"])
    if make != "note":
        claim = ClaimRow("a", 1, "", 0, 0, 0, 0, "")
        await idle.turn(settle(claim, "w:h"), want=0)
        state = "cancelled" if make == "cancel" else "completed"
        assert (await idle.record("a"))["state"] == state


async def test_retention_keeps_up_with_short_settles(idle: Shard) -> None:
    for n in range(40):
        await idle.add(row(f"j{n}"))
        assert await idle.settle_one(f"j{n}") == "done"
    idle.now += 200_000
    await idle.announce()
    for n in range(8):
        idle.now += 1
        await idle.turn(idle=1)
        await idle.add(row(f"k{n}"))
        answer = await idle.store.settle_one(
            worker="w",
            job=f"k{n}",
            text="1",
            pool="pool",
            keep=5,
            age=3_600_000,
            deadline=10.0**12,
            now=idle.now,
        )
        assert answer == "done"
    assert await idle.command("LLEN", idle.key("completed", QUEUE)) <= 16
    await idle.sweep(SweepQueue(QUEUE, 0, 0, 0, 0))


# crash windows


async def test_handed_to_dead_the_job_is_given_back_after_a_moment_and_is_no_stall(idle: Shard) -> None:
    await idle.add(row("a"))
    idle.now += PATIENCE - 1
    answer = await idle.turn(worker="x")
    assert (answer.claims, answer.next_due) == ([], idle.now + 1)
    idle.now += 1
    (claim,) = (await idle.turn(worker="x")).claims
    assert (claim.id, claim.stalls, claim.attempts) == ("a", 0, 0)
    assert (await idle.held(), await _messages(idle), await _due(idle)) == ([], [], [])


async def test_a_job_that_its_worker_confirmed_stays_with_its_worker(idle: Shard) -> None:
    await idle.add(row("a"))
    await _read(idle)
    idle.now += PATIENCE
    assert (await idle.turn(worker="x")).claims == []
    assert (await idle.held(), await _due(idle)) == (["a"], [])


async def test_handed_while_stopping_the_job_is_given_back_at_once(idle: Shard) -> None:
    await idle.announce(worker="x")
    await idle.add(row("a"))
    assert await idle.leave() == 1
    assert (await idle.members("ready"), await idle.held(), await _messages(idle)) == (["a"], [], [])
    assert await idle.members("wake", "pool") == [QUEUE]
    assert "stalls" not in await idle.record("a")
    assert await idle.leave() == 1


async def test_what_a_leaving_worker_knows_of_stays_its_own_though_its_confirmation_was_lost(
    idle: Shard,
) -> None:
    await idle.add(row("a"))
    await idle.command("ZPOPMIN", idle.key("control", "w"))
    await idle.leave(jobs=["a"])
    assert (await idle.held(), await _due(idle)) == (["a"], [])
    idle.now += PATIENCE
    await idle.turn(worker="x")
    assert await idle.settle_one("a", pool="") == "done"


async def test_a_renewal_confirms_what_it_names(idle: Shard) -> None:
    await idle.add(row("a"))
    await idle.command("ZPOPMIN", idle.key("control", "w"))
    assert await idle.renew(("a", "w:h")) == []
    idle.now += PATIENCE
    assert (await idle.turn(worker="x")).claims == []
    assert (await idle.held(), await _due(idle)) == (["a"], [])


async def test_what_a_leaving_worker_has_confirmed_stays_its_own(idle: Shard) -> None:
    await idle.add(row("a"))
    await _read(idle)
    await idle.leave()
    assert await idle.held() == ["a"]


async def test_what_is_given_back_goes_to_the_head(idle: Shard) -> None:
    await idle.add(row("a"))
    await idle.add(row("b"), row("c"))
    idle.now += PATIENCE
    await idle.turn(worker="x", want=0)
    assert await idle.members("ready") == ["a", "b", "c"]


async def test_a_cancelled_job_that_nobody_confirmed_ends_cancelled(idle: Shard) -> None:
    await idle.add(row("a"))
    assert await idle.cancel("a", text=CANCELLED) == ["asked"]
    idle.now += PATIENCE
    await idle.turn(worker="x")
    assert (await idle.record("a"))["state"] == "cancelled"
    assert [message for message in await _messages(idle) if message.startswith("job:")] == []


async def test_handed_message_lost_the_job_is_given_back_though_nobody_can_read_of_it(idle: Shard) -> None:
    await idle.add(row("a"))
    await idle.command("ZPOPMIN", idle.key("control", "w"))
    idle.now += PATIENCE
    assert [claim.id for claim in (await idle.turn(worker="x")).claims] == ["a"]
    assert "stalls" not in await idle.record("a")


async def test_a_renewal_gives_back_what_was_confirmed_and_is_forgotten(idle: Shard) -> None:
    await idle.add(row("a"))
    await _read(idle)
    assert await idle.renew() == []
    assert (idle.returned, await idle.held()) == ([], ["a"])
    idle.now += LEASE
    assert await idle.renew(("a", "w:h")) == []
    assert (idle.returned, await idle.held()) == ([], ["a"])
    await idle.renew()
    assert (idle.returned, await idle.members("ready")) == (["a"], ["a"])
    assert (await idle.record("a"))["stalls"] == "1"  # it may have run


async def test_a_renewal_leaves_what_nobody_confirmed_to_a_turn_for_which_it_is_no_stall(idle: Shard) -> None:
    await idle.add(row("a"))
    idle.now += LEASE
    await idle.renew()
    assert (idle.returned, await _due(idle)) == ([], ["hand:w/a"])
    await idle.turn(want=0)
    assert (await idle.members("ready"), await _messages(idle), await _due(idle)) == (["a"], [], [])
    assert "stalls" not in await idle.record("a")


async def test_a_renewal_gives_back_what_was_handed_over_before_the_clock_was_set_back(idle: Shard) -> None:
    await idle.add(row("a"))
    await idle.command("ZPOPMIN", idle.key("control", "w"))
    idle.now -= 3_600_000
    await idle.renew()
    assert (idle.returned, await idle.members("ready"), await _due(idle)) == (["a"], ["a"], [])


async def test_handed_then_died_the_job_is_rescued(idle: Shard) -> None:
    await idle.add(row("a"))
    await _read(idle)
    idle.now += LEASE
    await idle.rescue()
    assert idle.stalls == [StallRow("a", "rescued", "w", LEASE, 0)]
    assert (await idle.record("a"))["stalls"] == "1"


async def test_a_rescue_of_a_job_that_nobody_confirmed_is_no_stall(idle: Shard) -> None:
    await idle.renew()
    idle.now += LEASE - 1
    await idle.announce()
    await idle.add(row("a"))
    idle.now += 1
    await idle.rescue()
    assert await idle.members("ready") == ["a"]
    assert "stalls" not in await idle.record("a")
    assert await _messages(idle) == []


async def test_an_outage_of_the_book_hands_nothing_over_half(idle: Shard) -> None:
    await idle.command("DEL", idle.shard_key("queues"))
    await idle.add(row("a"))  # the store opens the shard and adds again
    assert await idle.held() == ["a"]
    assert len(await _messages(idle)) == 1
