"""The lines in which jobs wait: an entry counts if the record of its job confirms it, all others are
tombstones.
"""

from __future__ import annotations

import random

import pytest
from drivers.records import make_suspect
from drivers.shards import CANCELLED, LEASE, QUEUE, Shard, add_queue, row, settle, turn_queue
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree

from eventbus.emit.job_tree import Member
from eventbus.store.calls.queries import Cursor
from eventbus.store.scripting.script_rows import SUPERSEDE, TurnAnswer


async def _dead(shard: Shard, queue: str = QUEUE) -> int:
    return int(await shard.command("HGET", shard.shard_key("dead"), queue) or 0)


async def _entries(shard: Shard, kind: str = "ready") -> list[str]:
    return await shard.command("LRANGE", shard.key(kind, QUEUE), 0, -1)


async def _flags(shard: Shard) -> str | None:
    return await shard.command("HGET", shard.shard_key("queues"), QUEUE)


async def _count(shard: Shard) -> int:
    count = await shard.store.inspection.count(QUEUE, "waiting")
    (look,) = await shard.survey()
    assert look.waiting == count
    return count


def _ids(answer: TurnAnswer) -> list[str]:
    return [each.id for each in answer.claims]


async def test_what_is_cancelled_between_others_leaves_a_tombstone_that_no_worker_is_given(
    shard: Shard,
) -> None:
    await shard.add(*(row(each) for each in "abcde"))
    assert await shard.cancel("b", "d") == ["ended", "ended"]
    assert (await _entries(shard), await _dead(shard), await _count(shard)) == (list("abcde"), 2, 3)
    assert await shard.members("ready") == ["a", "c", "e"]
    answer = await shard.turn(want=2)
    assert (_ids(answer), answer.more) == (["a", "c"], [1])
    assert (await _dead(shard), await _count(shard)) == (1, 1)
    answer = await shard.turn()
    assert (_ids(answer), answer.more) == (["e"], [])
    assert await shard.command("EXISTS", shard.shard_key("dead"), shard.key("ready", QUEUE)) == 0


async def test_what_is_cancelled_at_either_end_leaves_none(shard: Shard) -> None:
    await shard.add(*(row(each) for each in "abcde"))
    await shard.cancel("a", "e", "d", "b")
    assert (await _entries(shard), await _dead(shard), await _count(shard)) == (["c"], 0, 1)


async def test_a_call_drops_a_bounded_number_of_tombstones_and_says_that_there_is_more(shard: Shard) -> None:
    ids = [f"j{n:03}" for n in range(460)]
    await shard.add(*(row(each) for each in ["first", *ids[:199]]))
    await shard.add(*(row(each) for each in ids[199:399]))
    await shard.add(*(row(each) for each in [*ids[399:], "last"]))
    await shard.cancel(*ids[:200])
    await shard.cancel(*ids[200:400])
    await shard.cancel(*ids[400:])
    assert await _count(shard) == 2
    counts: list[tuple[list[str], list[int]]] = []
    while not counts or counts[-1][1]:
        answer = await shard.turn(want=5)
        counts.append((_ids(answer), answer.more))
    assert [each for ids, _ in counts for each in ids] == ["first", "last"]
    assert 2 <= len(counts) <= 4
    assert await _dead(shard) == 0


async def test_one_call_drops_a_bounded_number_of_all_queues(shard: Shard) -> None:
    names = [f"event.q{n}" for n in range(40)]
    for name in names:
        ids = [f"{name}-{n}" for n in range(62)]
        await shard.add(*(row(each) for each in ids), queues=[add_queue(name)])
        await shard.cancel(*ids[1:31])
        await shard.cancel(*ids[31:61])
    queues, claimed, left, more = [turn_queue(name) for name in names], 0, 40 * 60, [1]
    while left:
        answer = await shard.turn(want=200, queues=queues)
        claimed, more = claimed + len(answer.claims), answer.more
        counts = await shard.command("HVALS", shard.shard_key("dead"))
        assert 0 < left - sum(map(int, counts)) <= 600
        left = sum(map(int, counts))
    while more:
        answer = await shard.turn(want=200, queues=queues)
        claimed, more = claimed + len(answer.claims), answer.more
    assert claimed == 80


async def test_a_lost_record_is_seen_where_nothing_was_cancelled(shard: Shard) -> None:
    await shard.add(row("a"), row("b"), row("c"))
    await shard.command("DEL", shard.key("job", "b"))
    assert _ids(await shard.turn()) == ["a", "c"]
    assert await shard.members("failed") == ["b"]


async def test_a_cancelled_job_that_was_forgotten_meanwhile_is_only_dropped(shard: Shard) -> None:
    await shard.add(row("a"), row("b"), row("c"))
    await shard.cancel("b")
    await shard.command("DEL", shard.key("job", "b"))
    await shard.command("DEL", shard.key("cancelled", QUEUE), shard.key("more", "b"))
    assert _ids(await shard.turn()) == ["a", "c"]
    assert await shard.members("failed") == []
    assert await _dead(shard) == 0


async def test_how_many_wait_is_exact_for_whoever_bounds_them(shard: Shard) -> None:
    bound = [add_queue(max_waiting=4)]
    await shard.add(row("a"), row("b"), row("c"), row("d", priority=3), queues=bound)
    (full,) = await shard.add(row("e"), queues=bound)
    assert full.word == "full"
    await shard.cancel("b")
    assert await shard.add(row("f"), queues=bound) == []
    await shard.cancel("d")
    assert await shard.add(row("g", priority=-3), queues=bound) == []
    await shard.command(*make_suspect(shard.key("job", "a"), QUEUE))
    (full,) = await shard.add(row("h"), queues=bound)
    assert full.word == "full"


async def test_the_book_says_of_a_queue_what_it_has_and_no_longer(shard: Shard) -> None:
    await shard.add(row("a"))
    assert await _flags(shard) is None
    await shard.add(row("low", priority=5), row("high", priority=-5), row("b"))
    assert await _flags(shard) == "\x08"
    assert _ids(await shard.turn(want=3)) == ["high", "a", "b"]
    assert await _flags(shard) == "\x08"
    await shard.command(*make_suspect(shard.key("job", "low"), QUEUE))
    await shard.command("ZREM", shard.key("ready+", QUEUE), "low")
    assert await _flags(shard) == "\x18"
    assert _ids(await shard.turn(is_alone=True)) == ["low"]
    assert await _flags(shard) is None


async def test_what_is_given_back_stands_first_in_the_order_of_its_claims(shard: Shard) -> None:
    await shard.add(*(row(f"j{n}") for n in range(6)), row("low", priority=1))
    first = await shard.turn(want=3)
    shard.now += 1
    second = await shard.turn(want=4, worker="w+")
    await shard.add(row("new"), row("newest", lifo=1), row("lower", priority=1))
    given = [
        settle(each, answer.token, "waiting", "") for answer in (second, first) for each in answer.claims
    ]
    random.Random(1).shuffle(given)
    await shard.turn(*given, want=0)
    assert await shard.members("ready") == [*(f"j{n}" for n in range(6)), "newest", "new", "low", "lower"]


async def test_what_several_dead_workers_held_stands_in_the_order_of_its_claims(shard: Shard) -> None:
    await shard.add(*(row(f"j{n}") for n in range(6)))
    await shard.turn(want=3, worker="z")
    shard.now += 1
    await shard.turn(want=3, worker="a")
    shard.now += 1
    await shard.renew(worker="z")
    shard.now += LEASE
    await shard.rescue()
    assert await shard.members("ready") == [f"j{n}" for n in range(6)]


async def test_the_oldest_is_found_behind_tombstones(shard: Shard) -> None:
    await shard.add(*(row(each) for each in "abc"))
    shard.now += 1000
    await shard.add(row("d"))
    shard.now += 1000
    await shard.add(row("e"))
    await shard.cancel("b", "c")
    await shard.cancel("a")
    (look,) = await shard.survey()
    assert (look.waiting, look.oldest) == (2, shard.now - 1000)


# pages


async def _page(shard: Shard, cursor: Cursor, limit: int = 3) -> tuple[list[str], Cursor]:
    page = await shard.store.inspection.jobs(QUEUE, "waiting", cursor=cursor, limit=limit)
    assert page.cursor is not None
    return [each.id for each in page.jobs], page.cursor


async def _rest(shard: Shard, cursor: Cursor) -> list[str]:
    found: list[str] = []
    following: Cursor | None = cursor
    while following is not None:
        page = await shard.store.inspection.jobs(QUEUE, "waiting", cursor=following, limit=3)
        found += [each.id for each in page.jobs]
        following = page.cursor
    return found


async def _fill(shard: Shard) -> None:
    await shard.add(*(row(f"j{n}") for n in range(9)), row("high", priority=-1), row("low", priority=1))
    await shard.add(row("bad"))
    await shard.command(*make_suspect(shard.key("job", "bad"), QUEUE))


async def test_pages_bring_each_waiting_job_once_in_the_order_of_claims(shard: Shard) -> None:
    await _fill(shard)
    await shard.cancel("j4")
    ids = [*(f"j{n}" for n in range(9) if n != 4)]
    assert await _rest(shard, Cursor()) == ["high", *ids, "low", "bad"]


async def test_a_page_goes_on_behind_the_last_one_while_the_head_is_claimed_and_filled(shard: Shard) -> None:
    await _fill(shard)
    seen, cursor = await _page(shard, Cursor(), 5)
    assert seen == ["high", "j0", "j1", "j2", "j3"]
    await shard.turn(want=3)
    await shard.add(row("first", lifo=1), row("j9"))
    assert await _rest(shard, cursor) == ["j4", "j5", "j6", "j7", "j8", "j9", "low", "bad"]


async def test_where_the_last_one_was_claimed_the_page_goes_on_at_the_head(shard: Shard) -> None:
    await _fill(shard)
    _, cursor = await _page(shard, Cursor(), 5)
    await shard.turn(want=7)  # up to j5
    assert await _rest(shard, cursor) == ["j6", "j7", "j8", "low", "bad"]


async def test_where_the_last_one_waits_again_the_page_goes_on_at_the_head(shard: Shard) -> None:
    await shard.add(*(row(f"j{n:02}") for n in range(30)))
    seen, cursor = await _page(shard, Cursor(), 10)
    answer = await shard.turn(want=10)
    again = [settle(each, answer.token, "delayed", "", attempts=1) for each in answer.claims]
    await shard.turn(*again, want=0)
    assert await _rest(shard, cursor) == [*(f"j{n}" for n in range(10, 30)), *seen]


async def test_a_page_goes_on_while_jobs_are_put_at_the_head(shard: Shard) -> None:
    await shard.add(*(row(f"j{n}") for n in range(9)))
    seen, cursor = await _page(shard, Cursor(), 4)
    await shard.add(*(row(f"first{n}", lifo=1) for n in range(20)))
    assert await _rest(shard, cursor) == ["j4", "j5", "j6", "j7", "j8"]
    assert seen == ["j0", "j1", "j2", "j3"]


async def test_where_the_last_one_of_another_priority_is_gone_the_page_goes_on_behind_its_place(
    shard: Shard,
) -> None:
    await shard.add(
        *(row(f"h{n}", priority=-2) for n in range(4)),
        row("a"),
        *(row(f"l{n}", priority=1) for n in range(4)),
    )
    seen, cursor = await _page(shard, Cursor(), 2)
    assert seen == ["h0", "h1"]
    await shard.cancel("h1")
    assert await _rest(shard, cursor) == ["h2", "h3", "a", "l0", "l1", "l2", "l3"]
    seen, cursor = await _page(shard, cursor, 5)
    assert seen == ["h2", "h3", "a", "l0", "l1"]
    await shard.cancel("l1", "l0")
    assert await _rest(shard, cursor) == ["l2", "l3"]


async def test_a_page_in_the_depth_of_a_line_that_moved_far_skips_nothing(shard: Shard) -> None:
    ids = [f"j{n:04}" for n in range(3000)]
    for first in range(0, 3000, 200):
        await shard.add(*(row(each) for each in ids[first : first + 200]))
    seen: list[str] = []
    cursor = Cursor()
    for _ in range(3):
        page, cursor = await _page(shard, cursor, 900)
        seen += page
    assert seen == ids[:2700]
    for _ in range(13):  # the last one that was seen moves by 2,600 places
        await shard.turn(want=200, queues=[turn_queue(quota=200)])
    assert await _rest(shard, cursor) == ids[2700:]


# jobs that wait a second time


async def _add_roots(shard: Shard, *names: str) -> TreeDriver:
    driver = TreeDriver(shard, repeats=False)
    for name in names:
        await driver.add(make_tree({}, root=name, on="wake"))
    return driver


async def test_a_root_that_waits_again_is_claimed_once_though_its_first_entry_is_still_there(
    shard: Shard,
) -> None:
    await _add_roots(shard, "e", "f", "g")
    assert await shard.cancel("f") == ["asked"]  # it waits anew, to undo
    assert await shard.command("LRANGE", shard.key("ready", ROOTS), 0, -1) == ["e", "f", "g", "f!1"]
    assert await shard.members("ready", ROOTS) == ["e", "g", "f"]
    answer = await shard.turn(queues=[turn_queue(ROOTS)])
    assert [(each.id, each.stop) for each in answer.claims] == [("e", ""), ("g", ""), ("f", "cancelled")]
    assert await _dead(shard, ROOTS) == 0


async def test_what_waits_again_is_claimed_where_a_line_is_read_a_second_time(shard: Shard) -> None:
    """The first entries are read as they are; those behind the tombstones among them have marks."""
    await _add_roots(shard, "e", "f", "g", "h")
    await shard.cancel("f", "g")
    entries = await shard.command("LRANGE", shard.key("ready", ROOTS), 0, -1)
    assert entries == ["e", "f", "g", "h", "f!1", "g!1"]
    turns = [await shard.turn(want=3, queues=[turn_queue(ROOTS)]) for _ in range(2)]
    assert [_ids(turn) for turn in turns] == [["e", "h", "f"], ["g"]]
    assert await _dead(shard, ROOTS) == 0


async def test_other_priorities_are_claimed_where_they_are_read_behind_a_list(shard: Shard) -> None:
    await shard.add(row("a"), row("low", priority=1), row("lower", priority=2))
    await shard.turn(want=2)
    await shard.turn(want=2)
    assert await shard.held() == ["a", "low", "lower"]


async def test_a_root_that_runs_anew_is_claimed_once_though_its_first_entry_is_still_there(
    shard: Shard,
) -> None:
    await _add_roots(shard, "e", "f", "g")
    await shard.cancel("f")
    answer = await shard.turn(queues=[turn_queue(ROOTS)])
    await shard.store.trees.checkpoint("f", answer.token, acknowledges=True, now=shard.now)
    await shard.turn(settle(answer.claims[2], answer.token, "cancelled", CANCELLED), want=0)
    await shard.command("RPUSH", shard.key("ready", ROOTS), "f")  # as if nobody had met it yet
    await shard.store.trees.restart(
        "f", call="c", run=1, body="{}", timeout_ms="", deadline=1e12, now=shard.now
    )
    assert await shard.command("LRANGE", shard.key("ready", ROOTS), 0, -1) == ["f", "f!2"]
    assert _ids(await shard.turn(queues=[turn_queue(ROOTS)])) == ["f"]


async def test_a_member_that_was_lined_up_and_stopped_in_one_call_waits_nowhere(shard: Shard) -> None:
    driver = TreeDriver(shard, repeats=False)
    await driver.add(make_tree({"a": "", "b": "", "c": "a", "d": "b"}, on="fail"))
    answer = await shard.turn(queues=[turn_queue(STEPS)])
    first, second = answer.claims
    ends = [settle(first, answer.token), settle(second, answer.token, "failed", '{"type":"E"}')]
    await shard.turn(*ends, queues=[turn_queue(STEPS)], want=0)
    assert await shard.state("f/c") == "cancelled"
    assert await shard.command("EXISTS", shard.key("ready", STEPS), shard.shard_key("dead")) == 0


@pytest.mark.parametrize("state", ["delayed", "waiting"])
async def test_a_member_that_goes_back_in_the_call_that_stops_its_tree_waits_nowhere(
    shard: Shard, state: str
) -> None:
    driver = TreeDriver(shard, repeats=False)
    await driver.add(make_tree({}))
    await driver.claim()
    await driver.spawn("f", Member("f/a", STEPS), Member("f/b", STEPS), waits=False)
    await driver.claim(want=1)
    (member,) = (each for each in driver.held if each != "f")
    claim, token = driver.held.pop(member)
    back = settle(claim, token, state, '{"type":"E"}', attempts=1 if state == "delayed" else "")
    await driver.turn(back, settle(*driver.held.pop("f"), "failed", '{"type":"E"}', attempts=1), want=0)
    assert await driver.states() == {"f": "waiting", "a": "cancelled", "b": "cancelled"}
    assert await driver.claim() == ["f"]
    assert await shard.command("EXISTS", shard.key("ready", STEPS), shard.shard_key("dead")) == 0


async def test_what_supersedes_at_a_priority_that_cannot_be_written_ends_nothing(
    shard: Shard, planted: set[str]
) -> None:
    await shard.add(row("old", key="k", print="p"))
    place = shard.key("ready+", QUEUE)
    planted.add(place)
    await shard.command("SET", place, "junk")
    (verdict,) = await shard.add(row("new", key="k", print="p", priority=5, meeting=SUPERSEDE))
    assert (verdict.word, verdict.text) == ("foreign", place)
    assert await shard.state("old") == "waiting"


async def test_a_root_whose_workers_die_too_often_leaves_no_tombstone_when_it_waits_to_undo(
    shard: Shard,
) -> None:
    driver = TreeDriver(shard, repeats=False)
    await driver.add(make_tree({}, on="wake"))
    for _ in range(4):
        assert await driver.claim() == ["f"]
        shard.now += LEASE
        await shard.rescue(max_stalls=3)
    assert await shard.command("EXISTS", shard.shard_key("dead")) == 0
    (look,) = await shard.survey(ROOTS)
    assert look.waiting == 1
    assert await driver.claim() == ["f"]
