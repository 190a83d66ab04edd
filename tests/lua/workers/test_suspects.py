"""rescue.lua and turn.lua: who is blamed for the end of a worker, and how jobs are claimed that may have
caused it.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from drivers.shards import LEASE, Shard, row, settle, turn_queue

from eventbus.store.scripting.script_rows import TurnAnswer, WatchRow

BEAT = LEASE * 3 // 10


def _ids(answer: TurnAnswer) -> list[str]:
    return [each.id for each in answer.claims]


async def _fields(shard: Shard, job: str) -> tuple[int, int, int, int]:
    record = await shard.record(job)
    stalls, spared, crowd, fatal = (
        int(record.get(name, 0)) for name in ("stalls", "spared", "crowd", "fatal")
    )
    return stalls, spared, crowd, fatal


async def _die(
    shard: Shard, *, after: int = 0, worker: str = "w", **given: Any
) -> tuple[list[str], list[str]]:
    """Let a worker die that was last heard `after` ms from now."""
    shard.now += after
    await shard.renew(worker=worker)
    shard.now += LEASE
    _, back, ended = await shard.rescue(**given)
    return back, ended


async def _make_suspects(shard: Shard, count: int, *, after: int = 0) -> list[str]:
    """Jobs that were all blamed three times for the ends of a worker that ran nothing else."""
    names = [f"s{n:03}" for n in range(count)]
    await shard.add(*(row(name) for name in names))
    for _ in range(3):
        assert _ids(await shard.turn()) == names
        await _die(shard, after=after, limit=1000, max_stalls=9)
    return names


# who is blamed


async def test_two_stalls_change_nothing_but_their_count(shard: Shard) -> None:
    await shard.add(*(row(f"j{n}") for n in range(8)))
    for stalls in (1, 2):
        await shard.turn()
        await _die(shard, after=700)
        assert {await _fields(shard, f"j{n}") for n in range(8)} == {(stalls, 0, 0, 0)}
        assert await shard.command("EXISTS", shard.key("suspects", turn_queue().queue)) == 0
    await shard.add(row("new"))
    assert _ids(await shard.turn()) == [*(f"j{n}" for n in range(8)), "new"]


@pytest.mark.parametrize(("count", "cap"), [(1, 1), (7, 1), (8, 2), (100, 25)])
async def test_from_the_third_blame_on_a_quarter_of_the_blamed_may_run_together(
    shard: Shard, count: int, cap: int
) -> None:
    names = await _make_suspects(shard, count, after=1500)
    assert {await _fields(shard, name) for name in names} == {(3, 0, cap, 1500 + BEAT)}
    await shard.add(row("new"))
    assert await shard.members("ready") == ["new", *names]
    answer = await shard.turn()
    assert _ids(answer) == ["new", *(names[:cap] if cap > 1 else [])]
    assert answer.watches == [WatchRow(name, cap, 1500 + BEAT) for name in _ids(answer)[1:]] or cap == 1


async def test_who_watched_suspects_blames_them_alone_and_spares_the_others(shard: Shard) -> None:
    names = await _make_suspects(shard, 12)
    await shard.add(*(row(f"j{n}") for n in range(20)))
    assert _ids(await shard.turn()) == [*(f"j{n}" for n in range(20)), *names[:3]]
    back, ended = await _die(shard, after=BEAT)
    assert (sorted(back), ended) == (sorted([*(f"j{n}" for n in range(20)), *names[:3]]), [])
    assert [await _fields(shard, name) for name in names[:3]] == [(4, 0, 1, 2 * BEAT)] * 3
    assert {await _fields(shard, f"j{n}") for n in range(20)} == {(1, 1, 0, 0)}
    assert await shard.members("ready") == [*(f"j{n}" for n in range(20)), *names[3:], *names[:3]]
    text = json.loads((await shard.command("LRANGE", shard.key("log", "j0"), -1, -1))[0])["message"]
    assert text.endswith("other jobs of that worker may be the cause")


async def test_a_suspect_that_outlived_its_last_end_is_blamed_like_all_others(shard: Shard) -> None:
    names = await _make_suspects(shard, 8)
    await shard.add(row("j"))
    assert _ids(await shard.turn()) == ["j", *names[:2]]
    await _die(shard, after=BEAT + 1)
    assert [await _fields(shard, name) for name in ("j", *names[:2])] == [
        (1, 0, 0, 0),
        *[(4, 0, 1, 2 * BEAT + 1)] * 2,
    ]


async def test_all_calls_that_rescue_one_worker_count_alike(shard: Shard) -> None:
    """`rescue-half`: whoever takes the first jobs may die, and another one goes on."""
    await shard.add(*(row(f"j{n:02}") for n in range(40)))
    for _ in range(3):
        await shard.turn()
        shard.now += LEASE
        for _ in range(4):
            await shard.rescue(limit=10)
    assert {(await _fields(shard, f"j{n:02}"))[2] for n in range(40)} == {10}
    assert not any(each == "#:blame" for each in await shard.command("HKEYS", shard.key("held", "w")))


async def test_the_calls_that_rescue_one_worker_all_know_that_it_watched_some(shard: Shard) -> None:
    names = await _make_suspects(shard, 8)
    await shard.add(*(row(f"j{n}") for n in range(5)))
    await shard.turn()
    shard.now += LEASE
    for _ in range(7):
        await shard.rescue(limit=1)
    assert [(await _fields(shard, name))[:3] for name in names[:2]] == [(4, 0, 1)] * 2
    assert {(await _fields(shard, f"j{n}"))[:2] for n in range(5)} == {(1, 1)}


async def test_a_worker_that_goes_on_between_two_calls_and_ends_later_is_counted_anew(shard: Shard) -> None:
    """`rescued-while-alive`."""
    await shard.add(*(row(f"j{n}") for n in range(12)))
    for _ in range(2):
        await shard.turn()
        await _die(shard)
    answer = await shard.turn()
    shard.now += LEASE
    await shard.rescue(limit=3)
    assert {(await _fields(shard, f"j{n:}"))[2] for n in (9, 10, 11)} == {3}
    await shard.turn(*(settle(each, answer.token) for each in answer.claims[:5]), want=0)
    await _die(shard)
    assert {(await _fields(shard, f"j{n}"))[2] for n in (5, 6, 7, 8)} == {1}


async def test_what_was_handed_over_and_not_confirmed_is_not_blamed(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("b"), row("c"))
    (claim,) = (await shard.turn(want=1)).claims
    await shard.turn(want=1)
    await shard.command("ZADD", shard.key("idle", "pool"), shard.now + LEASE, "w")
    await shard.add(row("a"))
    assert (await shard.held(), claim.id) == (["a", "b", "c"], "b")
    await shard.turn(settle(claim, "w:1"), want=0)
    assert await _die(shard, max_stalls=0) == ([], ["c"])
    assert "stalls" not in await shard.record("a")
    assert await shard.members("ready") == ["a"]
    assert json.loads((await shard.record("c"))["result"])["message"].endswith(
        "this job alone may be the cause"
    )


async def test_what_a_worker_does_not_know_of_is_not_blamed(shard: Shard) -> None:
    await shard.add(row("a"))
    for stalls in range(1, 6):
        await shard.turn()
        await shard.renew(calls=(shard.calls("w"), 0))
        assert await _fields(shard, "a") == (stalls, stalls, 0, 0)


# who fails


async def test_a_job_fails_past_the_limit_only_where_it_was_blamed_alone(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    ended: list[str] = []
    for _ in range(6):
        await shard.turn(is_alone=True)
        await shard.turn(worker="x", is_alone=True)
        for worker in "wx":
            await shard.renew(worker=worker)
        shard.now += LEASE
        _, _, ended = await shard.rescue(max_stalls=5)
    assert sorted(ended) == ["a", "b"]
    assert (await shard.record("a"))["stalls"] == "6"


async def test_killed_by_another_a_job_that_was_watched_by_itself_fails_only_the_second_time(
    shard: Shard,
) -> None:
    await shard.add(row("innocent"))
    for _ in range(3):
        await shard.turn()
        await _die(shard, max_stalls=3)
    for alone in (1, 2):
        await shard.turn(is_alone=True)
        await shard.add(row(f"killer{alone}"))
        await shard.turn(worker="w", watched=1, suspects=0)
        back, ended = await _die(shard, max_stalls=3)
        assert (len(back), ended) == ((2, []) if alone == 1 else (1, ["innocent"]))
        assert (await shard.record("innocent"))["alone"] == str(alone)
        await shard.cancel(f"killer{alone}")


async def test_a_job_that_is_never_alone_fails_after_four_times_the_limit(shard: Shard) -> None:
    await shard.add(*(row(f"j{n}") for n in range(12)))
    for stalls in range(1, 6):
        for job in [f"j{n}" for n in range(12)]:
            if stalls > 3:  # as if they had never been watched
                await shard.change(job, crowd=100, fatal=0)
        assert len(_ids(await shard.turn())) == 12
        back, ended = await _die(shard, after=BEAT + 1, max_stalls=1)
        assert (len(back), len(ended)) == ((12, 0) if stalls < 5 else (0, 12))


async def test_without_stalls_allowed_the_first_end_fails_all(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    await shard.turn()
    assert await _die(shard, max_stalls=0) == ([], ["a", "b"])


# who is claimed


async def test_as_many_are_claimed_as_the_smallest_cap_allows(shard: Shard) -> None:
    names = await _make_suspects(shard, 20)
    await shard.change(names[2], crowd=4)
    assert _ids(await shard.turn(watched=2, suspects=3)) == names[:2], (
        "the next one would be the fifth of four"
    )
    assert _ids(await shard.turn(watched=3, suspects=1)) == names[2:3]
    assert _ids(await shard.turn(suspects=0)) == []
    assert _ids(await shard.turn(worker="x", want=2)) == names[3:5]


async def test_suspects_and_others_stay_within_what_is_wanted_and_the_quota(shard: Shard) -> None:
    names = await _make_suspects(shard, 40)
    await shard.add(*(row(f"j{n}") for n in range(4)))
    answer = await shard.turn(want=6, queues=[turn_queue(quota=5)])
    assert (_ids(answer), answer.more) == (["j0", "j1", "j2", "j3", names[0]], [1])
    assert _ids(await shard.turn(want=3)) == names[1:4]


async def test_a_suspect_with_a_cap_of_1_is_claimed_alone_by_a_worker_that_made_room(shard: Shard) -> None:
    await _make_suspects(shard, 2)
    await shard.add(row("j"))
    answer = await shard.turn(want=10)
    assert (_ids(answer), answer.lonely) == (["j"], [1])
    answer = await shard.turn()
    assert (_ids(answer), answer.lonely, answer.more) == ([], [1], [])
    await shard.add(row("k"))
    answer = await shard.turn(is_alone=True)
    assert (_ids(answer), answer.watches, answer.more) == (["s000"], [WatchRow("s000", 1, BEAT)], [1])
    assert "room" not in await shard.record("s000")


async def test_one_worker_alone_makes_room_until_its_time_is_over(shard: Shard) -> None:
    """`room-not-made`."""
    await _make_suspects(shard, 1)
    assert (await shard.turn(worker="a")).lonely == [1]
    assert list((await shard.turn(worker="b")).lonely) == []
    assert _ids(await shard.turn(worker="b", is_alone=True)) == []
    assert (await shard.turn(worker="a+")).lonely == [1]
    shard.now += LEASE
    assert (await shard.turn(worker="b")).lonely == [1]
    assert _ids(await shard.turn(worker="a", is_alone=True)) == []
    assert _ids(await shard.turn(worker="b", is_alone=True)) == ["s000"]


async def test_a_worker_that_watches_others_is_told_but_does_not_keep_the_suspect(shard: Shard) -> None:
    await _make_suspects(shard, 1)
    assert (await shard.turn(worker="a", suspects=4, watched=1)).lonely == [1]
    assert (await shard.turn(worker="b")).lonely == [1]


async def test_a_repeated_turn_tells_again_what_is_to_be_watched(shard: Shard) -> None:
    await _make_suspects(shard, 9)
    answer = await shard.turn()
    again = await shard.turn(call=shard.calls("w"))
    assert (again.claims, again.watches) == (answer.claims, answer.watches)
    assert len(again.watches) == 2


async def test_suspects_do_not_hold_up_what_waits_behind_them(shard: Shard) -> None:
    await _make_suspects(shard, 60)
    await shard.add(*(row(name) for name in "cde"))
    answers = [await shard.turn(suspects=0, queues=[turn_queue(quota=2)]) for _ in range(3)]
    assert [_ids(each) for each in answers] == [["c", "d"], ["e"], []]
    assert [each.more for each in answers] == [[1], [], []]


def _asks_suspects_first(call: int) -> bool:
    """As `turn.lua` has it: one call of eight, spread over any sequence of calls."""
    return call * 40503 % 65536 < 65536 / 8


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 8, 16])
def test_of_each_so_many_calls_one_of_eight_asks_for_suspects_first(step: int) -> None:
    asking = [call for call in range(1, 1001 * step, step) if _asks_suspects_first(call)]
    assert 120 <= len(asking) <= 130
    assert max(after - before for before, after in itertools.pairwise(asking)) <= 21 * step


async def test_a_long_line_does_not_keep_suspects_for_ever(shard: Shard) -> None:
    await _make_suspects(shard, 8)
    await shard.add(*(row(f"j{n}") for n in range(20)))
    while not _asks_suspects_first(shard.calls("w") + 1):
        assert _ids(await shard.turn(want=1))[0].startswith("j")
    answer = await shard.turn(want=3)
    assert [each[0] for each in _ids(answer)] == ["s", "s", "j"]
    assert answer.more == [1]


async def test_who_makes_room_claims_nothing_beside_it(shard: Shard) -> None:
    """Otherwise long jobs would take the slots of the worker again and again, and the suspect would never
    run.
    """
    await _make_suspects(shard, 1)
    await shard.add(*(row(f"j{n}") for n in range(20)))
    while not _asks_suspects_first(shard.calls("w") + 1):
        await shard.turn(want=1)
    answer = await shard.turn(want=3)
    assert (_ids(answer), answer.lonely) == ([], [1])
    assert len(_ids(await shard.turn(worker="x", want=3))) == 3, "the others go on"
    assert _ids(await shard.turn(is_alone=True, want=3)) == ["s000"]


async def test_a_suspect_that_was_cancelled_is_dropped_and_blocks_nobody(shard: Shard) -> None:
    await _make_suspects(shard, 3)
    assert await shard.cancel("s001") == ["ended"]
    for name in ("s000", "s002"):
        answer = await shard.turn(is_alone=True)
        assert _ids(answer) == [name]
        await shard.turn(settle(answer.claims[0], answer.token), want=0)


async def test_a_suspect_that_is_given_back_stays_one(shard: Shard) -> None:
    await _make_suspects(shard, 1)
    answer = await shard.turn(is_alone=True)
    await shard.turn(settle(answer.claims[0], answer.token, "waiting", ""), want=0)
    assert (await shard.turn()).lonely == [1]
