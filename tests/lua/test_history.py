"""The history of queues in the server: cells by minute and hour, tallies that count once, what scripts count
themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, Shard, row, settle
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree

from eventbus.store.calls.history_store import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    OLDEST,
    RUNS,
    STALLED,
    WAITING,
    WAITS,
    QueueTally,
    Span,
)
from eventbus.store.scripting.script_rows import SUPERSEDE
from eventbus.store.scripting.scripts import load_script

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_KEPT: dict[str, Any] = {"minutes_ms": 2 * _DAY, "hours_ms": 90 * _DAY}


async def _tally(
    shard: Shard,
    number: int,
    counts: Mapping[int, int],
    *,
    worker: str = "w",
    queue: str = QUEUE,
    **gauges: int,
) -> str:
    tally = QueueTally(queue, gauges.get("waiting", ""), gauges.get("oldest", ""), counts)
    return await shard.store.history.tally(worker, number, [tally], **_KEPT, now=shard.now)


async def _cells(
    shard: Shard, span: Span = "minutes", count: int = 60, queue: str = QUEUE
) -> list[dict[int, int]]:
    """Return the cells of the last minutes or hours, the newest last."""
    at, cells = await shard.store.history.look(queue, span, count, now=shard.now)
    newest = at // (_MINUTE if span == "minutes" else _HOUR)
    return [cells.get(each, {}) for each in range(newest - count + 1, newest + 1)]


async def _sum(shard: Shard, code: int, queue: str = QUEUE) -> int:
    return sum(cell.get(code, 0) for cell in await _cells(shard, "hours", 24, queue))


async def _keep(shard: Shard) -> None:
    """A worker keeps a history; so scripts count, too."""
    await _tally(shard, 1, {}, worker="keeper")


async def _chunks(shard: Shard) -> list[str]:
    names = [await shard.command("KEYS", shard.key(kind, f"{QUEUE}:*")) for kind in ("minutes", "hours")]
    return sorted(names[0] + names[1])


async def test_the_scripts_get_what_their_headers_say(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    async def script(_: str, arguments: list[Any], **__: Any) -> list[int]:
        sent[:] = arguments
        return [7 * _HOUR, 7, 425, 2, COMPLETED, 5]

    monkeypatch.setattr(shard.store.history._caller, "script", script)  # pyright: ignore[reportPrivateUsage]
    tallies = [QueueTally("queue", 2, 3, {4: 5}), QueueTally("other", "", "", {6: 7, 8: 9})]
    await shard.store.history.tally("worker", 1, tallies, minutes_ms=10, hours_ms=20, now=0)
    fields = load_script("tally").fields
    assert fields["head"] == ["now", "worker", "number", "minutes", "hours", "queues"]
    assert sent == [0, "worker", 1, 10, 20, 2, "queue", 2, 3, 1, "other", "", "", 2, 4, 5, 6, 7, 8, 9]
    assert await shard.store.history.look("queue", "minutes", 1, now=0) == (7 * _HOUR, {425: {COMPLETED: 5}})
    assert load_script("history").fields["head"] == ["now", "queue", "kind", "last", "count"]
    assert sent == [0, "queue", "minutes", "", 2]


async def test_a_tally_adds_to_the_minute_and_the_hour_in_which_it_comes(shard: Shard) -> None:
    assert await _tally(shard, 1, {COMPLETED: 3, WAITS + 4: 3, RUNS + 40: 2}) == "added"
    assert await _tally(shard, 2, {COMPLETED: 1, RUNS + 40: 1, RUNS: 7}) == "added"
    shard.now += _MINUTE
    await _tally(shard, 3, {FAILED: 5})
    together = {COMPLETED: 4, WAITS + 4: 3, RUNS + 40: 3, RUNS: 7}
    assert await _cells(shard, count=3) == [{}, together, {FAILED: 5}]
    assert await _cells(shard, "hours", 2) == [{}, {**together, FAILED: 5}]


async def test_a_tally_whose_answer_was_lost_counts_once(shard: Shard) -> None:
    """`tally-not-answered`: the worker sends the same call again, perhaps in another minute, or a late copy
    of it comes.
    """
    assert await _tally(shard, 1, {COMPLETED: 3}) == "added"
    shard.now += _MINUTE
    assert await _tally(shard, 1, {COMPLETED: 3}) == "known"
    assert await _tally(shard, 2, {COMPLETED: 1}) == "added"
    assert await _tally(shard, 1, {COMPLETED: 3}) == "known"
    assert await _tally(shard, 1, {COMPLETED: 10}, worker="other") == "added"
    assert await _sum(shard, COMPLETED) == 14
    assert 0 < await shard.ttl("tally", "w") <= 600_000


async def test_a_late_tally_is_counted_in_the_minute_in_which_it_comes_and_in_no_old_cell(
    shard: Shard,
) -> None:
    """`late-tally`: a worker hung for as long as minutes are kept, and longer."""
    await _tally(shard, 1, {COMPLETED: 1})
    shard.now += 3 * _DAY
    assert await _cells(shard, count=2) == [{}, {}]
    await _tally(shard, 2, {COMPLETED: 5})
    assert await _cells(shard, count=2) == [{}, {COMPLETED: 5}]
    assert [sum(each.values()) for each in await _cells(shard, "hours", 73)] == [1, *[0] * 71, 5]


async def test_a_clock_that_is_set_back_adds_to_the_cells_of_that_time(shard: Shard) -> None:
    await _tally(shard, 1, {COMPLETED: 1})
    shard.now += 2 * _HOUR
    await _tally(shard, 2, {COMPLETED: 2})
    shard.now -= 2 * _HOUR
    await _tally(shard, 3, {COMPLETED: 4})
    assert await _cells(shard, count=2) == [{}, {COMPLETED: 5}]
    shard.now += 2 * _HOUR
    assert (await _cells(shard, count=121))[::120] == [{COMPLETED: 5}, {COMPLETED: 2}]


async def test_what_was_counted_goes_by_itself_and_an_idle_queue_has_nothing(shard: Shard) -> None:
    await _tally(shard, 1, {COMPLETED: 1})
    minute, hour = shard.now // _HOUR, shard.now // _DAY
    assert 2 * _DAY - 10_000 < await shard.ttl("minutes", f"{QUEUE}:{minute}") <= 2 * _DAY
    assert 90 * _DAY - 10_000 < await shard.ttl("hours", f"{QUEUE}:{hour}") <= 90 * _DAY
    await _tally(shard, 2, {}, queue="event.idle")
    assert await shard.command("KEYS", shard.key("*", "event.idle:*")) == []


async def test_a_count_stays_at_its_highest_value(shard: Shard) -> None:
    for number in (1, 2, 3):
        await _tally(shard, number, {COMPLETED: 2**31 - 2})
    assert (await _cells(shard, count=1)) == [{COMPLETED: 2**31 - 1}]


async def test_gauges_are_set_and_not_added(shard: Shard) -> None:
    """So several workers may look, and the same call may come twice."""
    await _tally(shard, 1, {}, waiting=7, oldest=shard.now - 5000)
    await _tally(shard, 1, {COMPLETED: 1}, worker="other", waiting=6, oldest=shard.now - 9000)
    assert await _cells(shard, count=1) == [{WAITING: 6, OLDEST: 9000, COMPLETED: 1}]


async def test_what_somebody_else_wrote_stays_and_only_its_counts_are_missing(
    shard: Shard, planted: set[str]
) -> None:
    foreign, damaged = (shard.key("minutes", f"{name}:{shard.now // _HOUR}") for name in (QUEUE, "event.b"))
    planted.add(foreign)
    await shard.command("SET", foreign, "mine")
    await shard.command("HSET", damaged, shard.now % _HOUR // _MINUTE, "no msgpack")
    for number, queue in enumerate((QUEUE, "event.b"), start=1):
        assert await _tally(shard, number, {COMPLETED: 2}, queue=queue) == "added"
    assert await shard.command("GET", foreign) == "mine"
    assert await _cells(shard, count=1) == [{}]
    assert await _cells(shard, count=1, queue="event.b") == [{COMPLETED: 2}]
    assert await _sum(shard, COMPLETED) == 2


async def test_a_week_by_the_minute_is_read_in_bounded_calls(shard: Shard) -> None:
    for hours in range(168):
        shard.now += _HOUR
        await _tally(shard, hours + 1, {COMPLETED: 1})
    assert sum(cell.get(COMPLETED, 0) for cell in await _cells(shard, count=7 * 24 * 60)) == 168


# what ends without a settle of a worker


async def test_a_waiting_job_that_is_cancelled_counts_once(shard: Shard) -> None:
    await _keep(shard)
    await shard.add(row("a"), row("b"), row("c", delay=5000))
    await shard.cancel("a", "c", call="once")
    await shard.cancel("a", "c", call="once")
    assert await _sum(shard, CANCELLED) == 2


async def test_a_waiting_job_that_another_one_supersedes_counts_as_cancelled(shard: Shard) -> None:
    await _keep(shard)
    await shard.add(row("a", key="k", meeting=SUPERSEDE))
    await shard.add(row("b", key="k", meeting=SUPERSEDE))
    assert await shard.state("a") == "cancelled"
    assert await _sum(shard, CANCELLED) == 1


async def test_nothing_is_counted_while_no_worker_keeps_a_history(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.cancel("a")
    assert await _chunks(shard) == []


async def test_a_stall_counts_and_so_does_the_end_that_it_brings(shard: Shard) -> None:
    await _keep(shard)
    await shard.add(row("a"))
    for _ in range(2):
        await shard.turn()
        shard.now += LEASE
        await shard.rescue(max_stalls=1)
    assert await shard.state("a") == "failed"
    assert (await _sum(shard, STALLED), await _sum(shard, FAILED)) == (2, 1)


async def test_a_completion_that_a_cancel_overrules_is_counted_as_cancelled(shard: Shard) -> None:
    await _keep(shard)
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.cancel("a")
    await shard.turn(settle(answer.claims[0], answer.token))
    assert await shard.state("a") == "cancelled"
    await _tally(shard, 1, {COMPLETED: 1})  # as its worker believes
    assert (await _sum(shard, COMPLETED), await _sum(shard, CANCELLED)) == (0, 1)


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_what_a_worker_settles_is_left_to_its_tally(shard: Shard, state: str) -> None:
    await _keep(shard)
    await shard.add(row("a", key="k"))
    await shard.run(state)
    assert await shard.state("a") == state
    assert await _chunks(shard) == []


async def test_members_that_never_ran_count_when_their_tree_stops(shard: Shard) -> None:
    await _keep(shard)
    driver = TreeDriver(shard, repeats=False)
    await driver.add(make_tree({"a": "", "b": "a", "c": "a"}))
    await driver.cancel()
    assert await driver.states() == {"f": "waiting", "a": "cancelled", "b": "cancelled", "c": "cancelled"}
    assert [await _sum(shard, CANCELLED, queue) for queue in (STEPS, ROOTS)] == [3, 0]
    await driver.undo(cause="cancelled")
    assert await _sum(shard, CANCELLED, ROOTS) == 0  # its worker tells of it


async def test_a_root_that_goes_on_to_undo_its_tree_has_not_failed_yet(shard: Shard) -> None:
    await _keep(shard)
    driver = TreeDriver(shard, repeats=False)
    await driver.add_alone(make_tree({}))
    await driver.run("failed")
    await _tally(shard, 1, {FAILED: 1}, queue=ROOTS)  # as its worker believes
    assert await driver.states() == {"f": "waiting"}
    assert await _sum(shard, FAILED, ROOTS) == 0


async def test_a_removed_group_loses_its_history(shard: Shard) -> None:
    name = f"{QUEUE}@audit"
    await shard.store.groups.add(QUEUE, "audit")
    await _tally(shard, 1, {COMPLETED: 1}, queue=name)
    shard.now += _DAY
    await _tally(shard, 2, {COMPLETED: 1}, queue=name)
    assert await _sum(shard, COMPLETED, name) == 1
    removal = await shard.store.groups.remove(
        QUEUE, "audit", force=True, limit=100, age_completed=0, age_failed=0, key_ttl_ms=_DAY,
        call="c", text="{}", now=shard.now,
    )  # fmt: skip
    assert removal.word == "done"
    assert await shard.command("KEYS", shard.key("*", f"{name}:*")) == []


async def test_what_ended_lately_is_counted_by_the_minute_also_over_the_end_of_an_hour(shard: Shard) -> None:
    roster = shard.store.inspection.roster
    shard.now = 3 * _HOUR + 30_000  # half a minute after the hour: four of the five minutes are before it
    ends = [(-6, {COMPLETED: 1000}), (-4, {COMPLETED: 8, FAILED: 1}), (-1, {EXPIRED: 2}), (0, {COMPLETED: 1})]
    begin = shard.now
    for number, (minute, counts) in enumerate(ends, 1):
        shard.now = begin + minute * _MINUTE
        await _tally(shard, number, counts)
    shard.now = begin
    counts, none = await roster.ended([QUEUE, "event.none"], now=shard.now)
    assert (counts.completed_per_minute, counts.failed_per_minute) == (9 / 4.5, round(3 / 4.5, 2))
    assert (none.completed_per_minute, none.failed_per_minute) == (0, 0)
    shard.now += 5 * _MINUTE
    (later,) = await roster.ended([QUEUE], now=shard.now)
    assert (later.completed_per_minute, later.failed_per_minute) == (0, 0)


async def test_what_is_no_count_of_ours_did_not_end_lately(shard: Shard, planted: set[str]) -> None:
    roster = shard.store.inspection.roster
    shard.now = 3 * _HOUR + 30_000
    chunk = shard.key("minutes", f"{QUEUE}:3")
    planted.add(chunk)
    await shard.command("HSET", chunk, "0", "foreign")
    await _tally(shard, 1, {COMPLETED: -1, FAILED: 2}, queue="event.other")
    ours, other = await roster.ended([QUEUE, "event.other"], now=shard.now)
    assert (ours.completed_per_minute, other.completed_per_minute) == (0, 0), "none is below 0"
    assert other.failed_per_minute > 0
    await shard.command("DEL", chunk)
    await shard.command("SET", chunk, "foreign")
    (ours,) = await roster.ended([QUEUE], now=shard.now)
    assert ours.completed_per_minute == 0
