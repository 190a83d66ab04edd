"""Rates over the fleet: never more starts within any span than allowed, and hardly fewer (`windows.lua`)."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right

import pytest
from drivers.shards import QUEUE, START, Shard, row, settle

from eventbus.model.limit import Limit


async def _limit(shard: Shard, *rates: str, at_once: int | None = None) -> None:
    limit = Limit(rate=rates, at_once=at_once)
    await shard.store.controls.set_limit(QUEUE, limit.to_wire(), now=shard.now)


async def _add(shard: Shard, count: int) -> None:
    for first in range(0, count, 200):
        await shard.add(*(row(f"j{shard.now}-{n}") for n in range(first, min(first + 200, count))))


async def _claim(shard: Shard, want: int = 1000) -> int:
    """Claim, and settle at once; return how many were claimed."""
    answer = await shard.turn(want=want)
    assert answer.more == [] or len(answer.claims) == want
    await shard.turn(*(settle(each, answer.token) for each in answer.claims), want=0)
    return len(answer.claims)


def _most(starts: list[int], span: int) -> int:
    """The most starts within any span, half open."""
    return max(bisect_left(starts, at + span) - i for i, at in enumerate(starts))


async def test_no_more_start_within_a_second_than_the_rate_says(shard: Shard) -> None:
    await _limit(shard, "10/1s")
    await _add(shard, 30)
    assert await _claim(shard) == 10
    shard.now += 999
    assert await _claim(shard) == 0
    shard.now += 64
    assert await _claim(shard) == 10


async def test_a_closed_queue_is_looked_at_when_it_opens_and_not_before(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard, "10/1s")
    await _add(shard, 25)
    answer = await shard.turn()
    opens = answer.next_due
    assert shard.now + 1000 <= opens <= shard.now + 1000 + 1000 // 16 + 1
    assert await shard.score("due", "", f"turn:{QUEUE}") == opens
    await shard.turn()  # takes what wakes there are
    assert await shard.members("wake", "pool") == []
    shard.now = opens - 1
    assert (await shard.turn()).claims == []
    shard.now = opens
    woken = await shard.turn(want=0)
    assert (woken.claims, await shard.members("wake", "pool")) == ([], [QUEUE])
    assert len((await shard.turn()).claims) == 10
    assert await shard.score("due", "", f"turn:{QUEUE}") == pytest.approx(opens + 1031, abs=33)


async def test_a_queue_with_nothing_to_do_is_woken_for_once_at_most(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard, "2/1s")
    await _add(shard, 2)
    shard.now = (await shard.turn()).next_due
    again = await shard.turn()
    assert (again.next_due, await shard.members("wake", "pool")) == (-1, [])


async def test_several_windows_hold_together_and_with_a_number_at_once(shard: Shard) -> None:
    await _limit(shard, "5/1s", "8/10s", at_once=3)
    await _add(shard, 20)
    answer = await shard.turn()
    assert len(answer.claims) == 3
    second = await shard.turn(*(settle(each, answer.token) for each in answer.claims))
    assert len(second.claims) == 2, "the second is used up"
    shard.now += 1100
    third = await shard.turn(*(settle(each, second.token) for each in second.claims))
    assert len(third.claims) == 3
    assert third.next_due > shard.now + 8000
    shard.now += 2000
    assert len((await shard.turn(*(settle(each, third.token) for each in third.claims))).claims) == 0


@pytest.mark.parametrize("seed", range(4))
async def test_at_random_times_no_span_ever_has_more_and_at_least_15_of_16_are_used(
    shard: Shard, seed: int
) -> None:
    rng = random.Random(seed)
    rates = [("7/1s", 7, 1000), ("40/10s", 40, 10_000)]
    await _limit(shard, *(text for text, _, _ in rates))
    await _add(shard, 400)
    starts: list[int] = []
    while shard.now < START + 60_000:
        starts += [shard.now] * await _claim(shard, want=rng.choice([1, 3, 50]))
        shard.now += rng.choice([1, 5, 20, 62, 63])
    for text, most, span in rates:
        assert _most(starts, span) <= most, text
    used = bisect_right(starts, START + 59_999) / (40 * 6)
    assert used >= 15 / 16


async def test_who_opens_the_queue_at_its_times_uses_15_of_16_of_the_rate(shard: Shard) -> None:
    await _limit(shard, "10/1s")
    await _add(shard, 400)
    starts: list[int] = []
    while shard.now < START + 34_000:
        answer = await shard.turn()
        starts += [shard.now] * len(answer.claims)
        await shard.turn(*(settle(each, answer.token) for each in answer.claims), want=0)
        shard.now = max(shard.now + 1, answer.next_due)
    assert _most(starts, 1000) == 10
    assert len(starts) >= 34 * 10 * 15 / 16


async def test_a_step_of_the_clock_forgets_no_start_and_closes_nothing_for_ever(shard: Shard) -> None:
    await _limit(shard, "10/1s")
    await _add(shard, 40)
    assert await _claim(shard) == 10
    shard.now -= 3_600_000
    assert await _claim(shard) == 0
    shard.now += 1063
    assert await _claim(shard) == 10
    shard.now += 10**10
    assert await _claim(shard) == 10


async def test_windows_that_stay_keep_their_starts_when_a_limit_changes(shard: Shard) -> None:
    await _limit(shard, "10/1s")
    await _add(shard, 40)
    assert await _claim(shard) == 10
    await _limit(shard, "12/1s", "100/1m")
    assert await _claim(shard) == 2


async def test_a_limit_that_is_taken_back_is_looked_at_no_more(shard: Shard) -> None:
    await shard.announce()
    await _limit(shard, "1/1s")
    await _add(shard, 3)
    assert await _claim(shard) == 1
    await shard.store.controls.set_limit(QUEUE, "", now=shard.now)
    assert await shard.members("due", "") == []
    assert await shard.members("wake", "pool") == [QUEUE]
    assert await _claim(shard) == 2


async def test_a_paused_queue_with_a_rate_stays_paused(shard: Shard) -> None:
    await _limit(shard, "1/1s")
    await _add(shard, 2)
    assert await _claim(shard) == 1
    await shard.store.controls.pause(QUEUE, by="ann", reason="", now=shard.now)
    shard.now += 2000
    answer = await shard.turn()
    assert (answer.claims, answer.next_due) == ([], -1)
