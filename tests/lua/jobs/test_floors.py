"""Emitters' floors: which finished jobs go, by what emitters still await."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, START, Shard, add_queue, row, settle, turn_queue

from eventbus.emit.job_tree import Tree, chunks_of
from eventbus.store.reply_stream import ReplyStream
from eventbus.store.scripting.packing import AddRows
from eventbus.store.scripting.script_rows import SweepQueue

_WINDOW = 120_000
_NONE = SweepQueue(QUEUE, 0, 10**9, 0, 10**9)
_FAR = 10.0**12


async def _floors(shard: Shard) -> dict[str, int]:
    flat = await shard.command("ZRANGE", shard.shard_key("emitters"), 0, -1, "WITHSCORES")
    return {name: int(score) for name, score in zip(flat[::2], flat[1::2], strict=True)}


async def _attend(shard: Shard, attendance: str, floor: int | str = "", mark: int | str = "") -> None:
    """A call of the emitter that the attendance names."""
    stream = ReplyStream(shard.store, attendance.partition(":")[0])
    await stream.attend(attendance, floor, mark=mark, now=shard.now)
    await stream.aclose(delete=False)


async def _end(shard: Shard, *jobs: str, attendance: str = "", **given: Any) -> None:
    await shard.add(*(row(job, **given) for job in jobs), attendance=attendance)
    await shard.run("completed")


async def _sweep(shard: Shard) -> list[str]:
    """Keep nothing that may go; return what is left."""
    await shard.sweep(_NONE)
    return await shard.members("completed")


async def test_what_nobody_awaits_goes_at_once(shard: Shard) -> None:
    await _end(shard, "a", "b")
    shard.now += 1
    assert await _sweep(shard) == []
    assert await shard.command("KEYS", f"{shard.store.keys.root}:job:*") == []


async def test_what_ends_in_a_call_does_not_go_in_it(shard: Shard) -> None:
    await shard.add(*(row(f"{n}") for n in range(8)))
    answer = await shard.turn()
    kept = [turn_queue(keep_completed=0)]
    await shard.turn(*(settle(each, answer.token) for each in answer.claims), queues=kept, want=0)
    assert len(await shard.members("leaving")) == 8
    assert await shard.state("0") == "completed"


async def test_an_add_that_says_the_name_holds_back_what_it_adds_and_what_ends_later(shard: Shard) -> None:
    await _end(shard, "before")
    shard.now += 1
    await _end(shard, "a", attendance="em:1")
    shard.now += 1
    await _end(shard, "b")
    assert await _floors(shard) == {"em:1": START + 1}
    shard.now += _WINDOW - 2
    assert await _sweep(shard) == ["a", "b"]
    shard.now += 2
    assert await _sweep(shard) == ["b"]


async def test_a_later_add_leaves_the_floor_and_one_with_an_older_time_lowers_it(shard: Shard) -> None:
    await shard.add(row("a"), attendance="em:1")
    shard.now += 500
    await shard.add(row("b"), attendance="em:1")
    assert await _floors(shard) == {"em:1": START}
    shard.now = START - 7
    await shard.add(row("c"), attendance="em:1")
    assert await _floors(shard) == {"em:1": START - 7}


async def test_an_add_that_says_no_name_costs_no_command_and_one_that_does_costs_one(shard: Shard) -> None:
    counts: list[int] = []
    for n, attendance in enumerate(["", "em:1", "", "em:1"]):
        await shard.add(row(f"x{n}"), attendance=attendance)  # the queue is not empty, and the book is open
        await shard.command("CONFIG", "RESETSTAT")
        await shard.add(row(f"y{n}"), attendance=attendance)
        stats = await shard.command("INFO", "commandstats")
        calls = [
            int(line.partition("calls=")[2].partition(",")[0]) for line in stats.split() if "cmdstat_" in line
        ]
        counts.append(sum(calls))
        assert ("cmdstat_zadd" in stats) == bool(attendance)
    assert [count - counts[0] for count in counts] == [0, 1, 0, 1]


async def test_the_slowest_emitter_decides(shard: Shard) -> None:
    await shard.add(row("slow"), attendance="slow:1", emitter="slow")
    for n in range(3):
        shard.now += 1000
        await _end(shard, f"fast{n}", attendance="fast:1")
        await _attend(shard, "fast:1", floor=shard.now)
    assert await _floors(shard) == {"slow:1": START, "fast:1": START + 3000}
    assert await _sweep(shard) == ["slow", "fast0", "fast1", "fast2"]
    await _attend(shard, "slow:1", floor=START + 1500)
    assert await _sweep(shard) == ["fast1", "fast2"]
    await _attend(shard, "slow:1", floor="left")
    assert await _sweep(shard) == ["fast2"]  # its end is the floor of the other: it may be unread


async def test_the_end_of_one_attendance_does_not_end_the_next(shard: Shard) -> None:
    await shard.add(row("a"), attendance="em:1")
    await shard.add(row("b"), attendance="em:2")
    await _attend(shard, "em:1", floor="left")  # it was late
    assert await _floors(shard) == {"em:2": START}


async def test_a_dead_emitter_holds_back_two_minutes_and_is_taken_out_after_ten(shard: Shard) -> None:
    """`emitter-dies-awaiting`"""
    await _end(shard, "a", attendance="dead:1")
    shard.now += _WINDOW
    await _end(shard, "b")
    assert await _sweep(shard) == ["a", "b"]
    shard.now += 1
    assert await _sweep(shard) == ["b"]
    shard.now = START + 5 * _WINDOW
    await _end(shard, "c")
    assert await _sweep(shard) == ["c"]
    assert await _floors(shard) == {"dead:1": START}
    shard.now += 1
    assert await _sweep(shard) == []
    assert await _floors(shard) == {}


async def test_an_emitter_that_hangs_is_there_again_with_its_next_call(shard: Shard) -> None:
    """`emitter-hangs`"""
    await _end(shard, "a", attendance="em:1")
    shard.now += 5 * _WINDOW + 5
    assert await _sweep(shard) == []
    assert await _floors(shard) == {}
    await _attend(shard, "em:1")
    assert await _floors(shard) == {"em:1": shard.now}
    await _end(shard, "b")
    shard.now += 10
    assert await _sweep(shard) == ["b"]


async def test_a_floor_that_is_ahead_of_the_clock_holds_back_all_until_its_emitter_calls(
    shard: Shard,
) -> None:
    """`clock-stepped-back`"""
    await shard.add(row("x"), attendance="em:1")
    await _attend(shard, "em:1", floor=START)
    shard.now = START - 60_000
    await _end(shard, "a")
    shard.now += 5
    assert await _sweep(shard) == ["x", "a"]
    await _attend(shard, "em:1", floor=START)  # it was told so before the step
    assert await _floors(shard) == {"em:1": shard.now}
    assert await _sweep(shard) == []


async def test_a_foreign_value_in_the_place_of_the_floors_holds_back_for_two_minutes(
    shard: Shard, planted: set[str]
) -> None:
    """`foreign-emitters`"""
    planted.add(shard.shard_key("emitters"))
    await shard.command("SET", shard.shard_key("emitters"), "foreign")
    await _end(shard, "a", attendance="em:1")
    await _attend(shard, "em:1", floor=START)
    await _attend(shard, "em:1", floor="left")
    shard.now += _WINDOW
    assert await _sweep(shard) == ["a"]
    shard.now += 1
    assert await _sweep(shard) == []


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_what_did_not_complete_stays_for_two_minutes_whoever_awaits_it(
    shard: Shard, state: str
) -> None:
    await shard.add(row("a"))
    await shard.run(state)
    shard.now += _WINDOW
    await shard.sweep(_NONE)
    assert await shard.members(state) == ["a"]
    shard.now += 1
    await shard.sweep(_NONE)
    assert await shard.members(state) == []


async def test_turns_remove_what_was_got(shard: Shard) -> None:
    """With a floor that follows, a queue keeps what it shall and what one step of the floor brings."""
    kept, most = [turn_queue(keep_completed=50)], 0
    for n in range(40):
        shard.now += 10
        await shard.add(*(row(f"{n:02}-{i:02}") for i in range(20)), attendance="em:1")
        answer = await shard.turn(queues=kept)
        await shard.turn(*(settle(each, answer.token) for each in answer.claims), queues=kept, want=0)
        most = max(most, await shard.command("LLEN", shard.key("completed", QUEUE)))
        if n % 4 == 3:
            await _attend(shard, "em:1", floor=shard.now)
    assert 50 <= most <= 50 + 5 * 20


async def test_a_turn_asks_for_the_floors_only_where_something_young_would_go(shard: Shard) -> None:
    asked: list[bool] = []
    for keep, age, passed in ((100, 10**9, 0), (8, 10**9, 2 * _WINDOW), (1, 10**9, 0), (100, 1, 5)):
        await _end(shard, *(f"{len(asked)}-{n}" for n in range(4)))
        shard.now += passed
        await shard.add(*(row(f"{len(asked)}+{n}") for n in range(8)))
        answer = await shard.turn()
        await shard.command("CONFIG", "RESETSTAT")
        kept = [turn_queue(keep_completed=keep, age_completed=age)]
        await shard.turn(*(settle(each, answer.token) for each in answer.claims), queues=kept, want=0)
        stats = await shard.command("INFO", "commandstats")
        asked.append("cmdstat_zrange:calls=2" in stats)  # the other one asks what is due
        assert "cmdstat_llen" not in stats, "the answer to the push says how long the list is"
        await shard.command("DEL", shard.key("completed", QUEUE))
    assert asked == [False, False, True, True]


# who else says the name


async def test_a_join_by_a_key_says_the_name(shard: Shard) -> None:
    await shard.add(row("a", key="k"), attendance="one:1", emitter="one")
    shard.now += 5
    await shard.add(row("b", key="k"), attendance="two:1", emitter="two")
    assert await _floors(shard) == {"one:1": START, "two:1": START + 5}


async def test_a_look_that_joins_says_the_name_and_no_other_does(shard: Shard) -> None:
    await shard.add(row("a"))
    look: Any = {"attendance": "late:1", "now": shard.now}
    await shard.store.look("late", ["none"], join=True, **look)
    await shard.store.look("late", ["a"], join=False, **look)
    assert await _floors(shard) == {}
    await shard.store.look("late", ["a"], join=True, **look)
    assert await _floors(shard) == {"late:1": START}


async def test_a_tree_says_the_name(shard: Shard) -> None:
    chunks = chunks_of(Tree("r", "flows", "{}"), reply=True)
    await shard.store.trees.add("em", chunks, deadline=_FAR, attendance="em:1", now=shard.now)
    assert await _floors(shard) == {"em:1": START}


async def test_who_is_too_many_to_be_told_holds_back_too(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.store.look("e0", ["a"], join=True)
    await shard.command("SADD", shard.key("waiters", "a"), *(f"e{n}" for n in range(1000)))
    (found,) = await shard.store.look("late", ["a"], join=True, attendance="late:1", now=shard.now)
    assert found.text == "unlisted"
    await shard.run("completed")
    shard.now += 1000
    assert await _sweep(shard) == ["a"]
    await _attend(shard, "late:1", floor="left")
    assert await _sweep(shard) == []


# the calls


async def test_a_call_renews_the_stream_makes_it_and_marks_it(shard: Shard) -> None:
    stream = ReplyStream(shard.store, "em")
    assert await stream.attend("em:1", mark=1, now=shard.now) == (START, True)
    shard.now += 3
    assert await stream.attend("em:1", START + 2, mark=2, now=shard.now) == (START + 3, False)
    assert await stream.read() == []
    assert (stream.mark, await _floors(shard)) == (2, {"em:1": START + 2})
    await shard.command("EXPIRE", shard.key("replies", "em"), 5)
    await stream.attend("em:1", now=shard.now)
    assert 590_000 < await shard.ttl("replies", "em") <= 600_000
    await stream.aclose(delete=True, attendance="em:1")
    assert (await _floors(shard), await shard.command("EXISTS", shard.key("replies", "em"))) == ({}, 0)


async def test_a_mark_stands_behind_the_outcomes_of_calls_before_it(shard: Shard) -> None:
    stream = ReplyStream(shard.store, "em")
    await stream.attend("em:1", mark=1, now=shard.now)
    await _end(shard, "a")
    await stream.attend("em:1", mark=2, now=shard.now)
    key = shard.key("replies", "em")
    kinds = [fields[0] for _, fields in await shard.command("XRANGE", key, "-", "+")]
    assert kinds == ["open", "mark", "d", "mark"]
    assert [each.job for each in await stream.read()] == ["a"]
    await stream.aclose(delete=True)


async def test_the_loss_of_a_stream_is_told_before_it_is_made_anew(shard: Shard) -> None:
    there: list[str] = []
    stream = ReplyStream(shard.store, "em", on_gone=lambda: there.append("gone"))
    for attendance in ("", "em:1"):
        await shard.command("DEL", shard.key("replies", "em"))
        flat = [shard.now, "em", 600, 0, attendance, "", 7]
        assert await shard.script("attend", flat) == [shard.now, 0]
        assert await shard.command("EXISTS", shard.key("replies", "em")) == 0, "first its owner hears of it"
        await stream.attend(attendance, now=shard.now)
    assert there == ["gone"] * 2
    await stream.aclose(delete=True)


async def test_a_full_server_lets_an_emitter_attend_and_its_floor_rise(shard: Shard) -> None:
    await shard.add(row("a"), attendance="em:1")
    await shard.command("CONFIG", "SET", "maxmemory", 1)
    try:
        shard.now += 5
        await _attend(shard, "em:1", floor=shard.now, mark=1)
        await _attend(shard, "new:1", mark=1)
        assert await _floors(shard) == {"em:1": START + 5, "new:1": START + 5}
        await shard.store.look("late", ["a"], join=True, attendance="late:1", now=shard.now)
        assert (await _floors(shard))["late:1"] == START + 5
        assert await shard.add(row("a"), attendance="em:1") == [], "a repeat is answered all the same"
        await _attend(shard, "em:1", floor="left")
    finally:
        await shard.command("CONFIG", "SET", "maxmemory", 0)


async def test_a_repeat_of_an_add_meets_its_job_while_its_emitter_has_not_heard_of_it(shard: Shard) -> None:
    """Who repeats an add has a floor of before it: otherwise the job would run again."""
    queues = [add_queue()]
    again: dict[str, Any] = {"deadline": _FAR, "attendance": "em:1", "now": shard.now}
    await shard.store.add("em", queues, AddRows([row("a", reply=0)]), **again)
    await shard.run("completed")
    shard.now += LEASE
    assert await _sweep(shard) == ["a"]
    await shard.store.add("em", queues, AddRows([row("a", reply=0)]), **again)
    assert (await shard.state("a"), await shard.members("ready")) == ("completed", [])
