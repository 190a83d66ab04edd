"""No call reads more than about a megabyte of bodies, results or plans, however many jobs it looks at."""

from __future__ import annotations

import re

from drivers.shards import QUEUE, Shard, row, settle

from eventbus.store.calls.queries import Cursor

_LARGE = 200_000
_MOST = 6
"""Texts of that size that one call reads: a megabyte, and the one that goes beyond it."""


async def _count_reads(shard: Shard) -> int:
    """How many strings the server has read, one at a time."""
    stats: str = await shard.command("INFO", "commandstats")
    return sum(int(each) for each in re.findall(r"cmdstat_(?:get|getrange):calls=(\d+)", stats))


async def test_a_search_reads_a_megabyte_of_bodies_in_a_call(shard: Shard) -> None:
    body = "x" * _LARGE
    await shard.add(*(row(f"j{n:02}", body=body + ("sought" if n % 7 == 0 else "")) for n in range(20)))
    found, looked, place = list[str](), list[int](), Cursor()
    while place is not None:
        page, seen = await shard.store.inspection.sift(QUEUE, "waiting", "sought", cursor=place, limit=100)
        found += [each.id for each in page.jobs]
        looked.append(seen)
        place = page.cursor
    assert found == ["j00", "j07", "j14"]
    assert sum(looked) == 20
    assert max(looked) <= _MOST


async def test_a_page_of_failed_jobs_reads_a_megabyte_of_errors_in_a_call_or_their_heads(
    shard: Shard,
) -> None:
    jobs = [f"j{n:02}" for n in range(20)]
    await shard.add(*(row(job) for job in jobs))
    answer = await shard.turn()
    ends = [settle(each, answer.token, "failed", text="e" * _LARGE) for each in answer.claims]
    await shard.turn(*ends, want=0)
    heads = await shard.store.inspection.jobs(QUEUE, "failed", cursor=Cursor(), limit=100, text_bytes=50)
    assert [len(each.text) for each in heads.jobs] == [50] * 20
    found, place = list[str](), Cursor()
    while place is not None:
        page = await shard.store.inspection.jobs(QUEUE, "failed", cursor=place, limit=100)
        assert len(page.jobs) <= _MOST
        assert {len(each.text) for each in page.jobs} <= {_LARGE}
        found += [each.id for each in page.jobs]
        place = page.cursor
    assert sorted(found) == jobs


async def test_who_joins_jobs_that_have_ended_is_told_a_megabyte_of_outcomes_in_a_call(shard: Shard) -> None:
    """Who is told no more asks for the outcome."""
    keys = [f"k{n:02}" for n in range(20)]
    await shard.add(*(row(f"first-{key}", key=key, print="p") for key in keys))
    answer = await shard.turn()
    await shard.turn(*(settle(each, answer.token, text="r" * _LARGE) for each in answer.claims), want=0)
    verdicts = await shard.add(*(row(f"second-{key}", key=key, print="p") for key in keys))
    told = [each for each in verdicts if each.state == "completed"]
    asking = [each for each in verdicts if each.state == "unlisted"]
    assert 0 < len(told) <= _MOST
    assert {len(each.text) for each in told} == {_LARGE}
    assert len(told) + len(asking) == 20
    assert {each.job for each in asking} < {f"first-{key}" for key in keys}


async def test_schedules_are_read_up_to_a_number_of_bytes(shard: Shard) -> None:
    for n in range(10):
        await shard.store.schedules.change(
            "put", f"s{n}", seen="", queue=QUEUE, now=shard.now, slot=shard.now, due=shard.now,
            plan="p" * _LARGE, digest="1",
        )  # fmt: skip
    before = await _count_reads(shard)
    assert len((await shard.store.schedules.look()).rows) <= _MOST
    assert len((await shard.store.schedules.fire([], key_ttl_ms=1000, now=shard.now)).due) <= _MOST
    assert await _count_reads(shard) - before <= 2 * _MOST
