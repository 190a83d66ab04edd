"""The lists of jobs that completed: their order, their pages while both ends move, and roots that run
again.
"""

from __future__ import annotations

import pytest
from drivers.shards import QUEUE, START, Shard, row, settle, turn_queue

from eventbus.emit.job_tree import Tree, chunks_of
from eventbus.store.calls.queries import Cursor
from eventbus.store.scripting.script_rows import SweepQueue

_WINDOW = 120_000
_ROOTS = "flows"
_QUEUES = (turn_queue(_ROOTS), turn_queue())


async def _complete(shard: Shard, *jobs: str) -> None:
    """Complete jobs, one after the other, a second apart."""
    for job in jobs:
        await shard.add(row(job))
        answer = await shard.turn()
        shard.now += 1000
        await shard.turn(*(settle(each, answer.token) for each in answer.claims), want=0)


async def _page(shard: Shard, cursor: Cursor | None = None) -> tuple[list[str], Cursor | None]:
    page = await shard.store.inspection.jobs(QUEUE, "completed", cursor=cursor or Cursor(), limit=3)
    return [each.id for each in page.jobs], page.cursor


async def _run_root(shard: Shard, root: str) -> None:
    answer = await shard.turn(queues=_QUEUES)
    assert [each.id for each in answer.claims] == [root]
    await shard.turn(*(settle(each, answer.token) for each in answer.claims), queues=_QUEUES, want=0)


async def _add_root(shard: Shard, root: str) -> None:
    chunks = chunks_of(Tree(root, _ROOTS, "{}"), reply=False)
    await shard.store.trees.add("em", chunks, deadline=1e12, now=shard.now)


async def test_an_entry_is_the_end_and_the_job_the_oldest_first(shard: Shard) -> None:
    await _complete(shard, "b", "a")
    entries = await shard.command("LRANGE", shard.key("completed", QUEUE), 0, -1)
    assert entries == [f"{START + 1000}b", f"{START + 2000}a"]
    assert await shard.store.inspection.count(QUEUE, "completed") == 2


async def test_pages_go_on_where_they_ended_while_both_ends_of_the_list_move(shard: Shard) -> None:
    jobs = [f"j{n}" for n in range(12)]
    await _complete(shard, *jobs)
    first, cursor = await _page(shard)
    assert first == ["j11", "j10", "j9"]
    await _complete(shard, "new1", "new2")
    shard.now += _WINDOW
    assert await shard.sweep(SweepQueue(QUEUE, 10, 10**9, 0, 0)) == 4
    second, cursor = await _page(shard, cursor)
    assert second == ["j8", "j7", "j6"]
    assert await shard.sweep(SweepQueue(QUEUE, 8, 10**9, 0, 0)) == 2
    assert await _page(shard, cursor) == ([], None), "what would be next is gone"
    assert (await _page(shard))[0] == ["new2", "new1", "j11"]
    assert await shard.command("HGET", shard.shard_key("cuts"), QUEUE) == "6"


async def test_retention_takes_the_oldest_by_count_and_by_age(shard: Shard) -> None:
    await _complete(shard, "a", "b", "c", "d")
    await shard.command("ZADD", shard.shard_key("emitters"), START, "em:1")  # somebody awaits them all
    shard.now = START + 3000 + _WINDOW  # the end of c is as old as the window
    assert await shard.sweep(SweepQueue(QUEUE, 0, 10**9, 0, 0), limit=1) == 1
    assert await shard.sweep(SweepQueue(QUEUE, 0, 10**9, 0, 0)) == 1
    assert await shard.members("completed") == ["c", "d"]
    shard.now = START + 4000 + 2 * _WINDOW
    assert await shard.sweep(SweepQueue(QUEUE, 100, 2 * _WINDOW, 0, 0)) == 1
    assert await shard.members("completed") == ["d"]


async def test_what_ended_before_the_clock_was_set_back_keeps_nothing_behind_it(shard: Shard) -> None:
    await _complete(shard, "a", "b")
    shard.now -= 3_600_000
    await _complete(shard, "c", "d")
    await shard.command("ZADD", shard.shard_key("emitters"), shard.now - 500, "em:1")
    assert await shard.sweep(SweepQueue(QUEUE, 0, 10**9, 0, 0)) == 3
    assert await shard.members("completed") == ["d"], "somebody awaits it"


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_root_that_runs_again_is_not_forgotten_for_its_last_run(shard: Shard, is_long: bool) -> None:
    await _add_root(shard, "r")
    await _run_root(shard, "r")
    if is_long:
        foreign = [f"{START:013}gone{n}" for n in range(100_000)]
        for first in range(0, len(foreign), 20_000):
            await shard.command("RPUSH", shard.key("completed", _ROOTS), *foreign[first : first + 20_000])
    assert (
        await shard.store.trees.restart("r", call="again", run=1, body="{}", timeout_ms="", now=shard.now)
        == "restarted"
    )
    assert ("r" in await shard.members("completed", _ROOTS)) == is_long
    shard.now += 2 * _WINDOW
    await shard.sweep(SweepQueue(_ROOTS, 0, 0, 0, 0), limit=1)
    assert await shard.state("r") == "waiting"
    await _run_root(shard, "r")
    assert (await shard.members("completed", _ROOTS))[-1] == "r"
    await shard.command(
        "DEL", shard.key("completed", _ROOTS), *([shard.key("job", "r"), shard.key("more", "r")])
    )


async def test_a_foreign_list_keeps_no_job_from_ending(shard: Shard, planted: set[str]) -> None:
    planted.add(shard.key("completed", QUEUE))
    await shard.command("SET", shard.key("completed", QUEUE), "foreign")
    await _complete(shard, "a", "b")
    assert [await shard.state(each) for each in "ab"] == ["completed", "completed"]
    shard.now += 2 * _WINDOW
    assert await shard.sweep(SweepQueue(QUEUE, 0, 0, 0, 0)) == 0
