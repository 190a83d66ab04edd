"""Finished jobs that go at a time of their own: `leaving.lua`."""

from __future__ import annotations

import pytest
from drivers.shards import QUEUE, START, Shard, row, settle, turn_queue

from eventbus.emit.job_tree import Tree, chunks_of
from eventbus.store.calls.queries import Cursor
from eventbus.store.scripting.script_rows import SUPERSEDE, SweepQueue

_WINDOW = 120_000
_EMPTY = (turn_queue(keep_completed=0),)


async def _attend(shard: Shard, floor: int | None = None) -> None:
    """An emitter awaits outcomes; it has got all that ended before `floor`."""
    await shard.command("ZADD", shard.shard_key("emitters"), shard.now if floor is None else floor, "em:1")


async def _look(shard: Shard, ms: int = 1001) -> None:
    """A worker's turn, that much later."""
    shard.now += ms
    await shard.turn(want=0, worker="other", queues=())


async def test_a_job_that_is_kept_for_no_time_goes_within_a_second(shard: Shard) -> None:
    await shard.add(row("a", keep="0,"), row("b"))
    await shard.run("completed")
    assert await shard.members("leaving") == ["a"]
    assert await shard.members("completed") == ["b"]
    await _look(shard, 999)
    assert await shard.state("a") == "completed"
    await _look(shard, 1)
    assert [await shard.state(each) for each in "ab"] == [None, "completed"]
    assert await shard.command("EXISTS", shard.key("leaving", QUEUE), shard.key("more", "a")) == 0
    assert "leave:" not in str(await shard.members("due", ""))


async def test_the_turn_that_ends_it_says_when_to_look(shard: Shard) -> None:
    await shard.add(row("a", keep="0,"))
    answer = await shard.turn()
    ended = await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert ended.next_due == shard.now + 1000


async def test_an_outcome_stays_until_its_emitter_has_got_it(shard: Shard) -> None:
    await shard.add(row("a", keep="0,"))
    await _attend(shard)
    await shard.run("completed", text='"' + "x" * 9000 + '"')
    for _ in range(3):
        await _look(shard)
        assert await shard.state("a") == "completed"
    await _attend(shard)
    await _look(shard)
    assert await shard.state("a") is None
    assert await shard.command("EXISTS", shard.key("result", "a")) == 0


async def test_an_emitter_that_died_holds_it_back_for_two_minutes_at_most(shard: Shard) -> None:
    await shard.add(row("a", keep="0,"))
    await _attend(shard)
    await shard.run("completed")
    await _look(shard, _WINDOW)
    assert await shard.state("a") == "completed"
    await _look(shard)
    assert await shard.state("a") is None


async def test_an_own_time_is_longer_or_shorter_than_that_of_the_queue(shard: Shard) -> None:
    await shard.add(row("short", keep="5000,"), row("long", keep="10000000,"), row("none"))
    await shard.run("completed")
    await _look(shard, 5000)
    assert await shard.state("short") == "completed"
    await _look(shard, 1000)
    assert await shard.state("short") is None
    shard.now += 4_000_000
    assert await shard.sweep(SweepQueue(QUEUE, 0, 0, 0, 0)) == 1
    assert [await shard.state(each) for each in ("long", "none")] == ["completed", None]
    await _look(shard, 6_000_000)
    assert await shard.state("long") is None


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_what_did_not_complete_stays_for_two_minutes_at_least(shard: Shard, state: str) -> None:
    await shard.add(row("a", keep="0,0"), row("b", keep=",500000"), row("c", keep="0,"))
    if state == "cancelled":
        await shard.cancel("a", "b", "c")
    else:
        await shard.run("failed", text='{"type":"E","message":"m"}')
    assert (await shard.members("leaving"), await shard.members(state)) == (["a", "b"], ["c"])
    await _look(shard, _WINDOW)
    assert await shard.state("a") == state
    await _look(shard)
    assert [await shard.state(each) for each in "abc"] == [None, state, state]
    await _look(shard, 500_000)
    assert [await shard.state(each) for each in "bc"] == [None, state]


async def test_a_queue_that_keeps_nothing_empties_itself_whatever_way_its_jobs_end(shard: Shard) -> None:
    await shard.announce()
    rows = [row("plain"), row("keyed", key="k", print="p"), row("large"), row("own", keep="9000000,")]
    for each in rows:
        await shard.add(each)
    answer = await shard.turn(queues=_EMPTY)
    texts = {"large": '"' + "x" * 9000 + '"'}
    ends = [settle(each, answer.token, text=texts.get(each.id, "1")) for each in answer.claims]
    await shard.turn(*ends, queues=_EMPTY, want=0)
    assert await shard.members("completed") == []
    assert await shard.members("leaving") == ["keyed", "large", "plain", "own"]
    await _look(shard)
    assert await shard.members("leaving") == ["own"]
    (verdict,) = await shard.add(row("again", key="k", print="p"))
    assert (verdict.word, verdict.job, verdict.text) == ("joined", "keyed", "1"), "its key has the outcome"


async def test_jobs_that_are_gone_make_no_second_one_while_their_add_may_come_again(shard: Shard) -> None:
    await shard.add(row("a"), attendance="em:1")
    answer = await shard.turn(queues=_EMPTY)
    await shard.turn(*(settle(each, answer.token) for each in answer.claims), queues=_EMPTY, want=0)
    await _look(shard, 5000)
    assert await shard.add(row("a"), attendance="em:1") == []
    assert await shard.members("ready") == []


async def test_who_settles_again_what_is_gone_hears_the_same(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn(queues=_EMPTY)
    ends = [settle(each, answer.token) for each in answer.claims]
    await shard.turn(*ends, queues=_EMPTY, want=0)
    await _look(shard)
    assert await shard.state("a") is None
    assert (await shard.turn(*ends, queues=_EMPTY, want=0, call=shard.calls("w"))).lost == []


async def test_a_job_stays_until_all_who_joined_it_are_told(shard: Shard) -> None:
    await shard.open_replies("e249")
    given = row("a", key="k", print="p", keep="0,")
    await shard.add(given)
    for n in range(250):
        await shard.add(given._replace(id=f"j{n}"), emitter=f"e{n}")
    await shard.command("ZADD", shard.shard_key("due"), 1, "hear:a")  # as long as a chore has to tell some
    await shard.run("completed")
    for _ in range(3):
        await _look(shard)
    assert await shard.state("a") is None
    assert [each[0][:2] for each in await shard.replies("e249")] == [("a", "completed")]


async def test_a_root_that_runs_again_keeps_its_own_time_and_does_not_go(shard: Shard) -> None:
    await shard.add(row("r", keep="0,"))
    tree = Tree("t", QUEUE, "{}")
    await shard.store.trees.add("em", chunks_of(tree, reply=False), deadline=1e12, now=shard.now)
    await shard.change("t", keep="0,")
    await shard.run("completed")
    restart = shard.store.trees.restart
    word = await restart("t", call="again", run=1, body="{}", timeout_ms="", now=shard.now)
    assert word == "restarted"
    assert await shard.members("leaving") == ["r"]
    await shard.command("ZADD", shard.key("leaving", QUEUE), START, "t")  # an entry that means nothing
    await _look(shard)
    assert [await shard.state(each) for each in "rt"] == [None, "waiting"]
    assert await shard.members("leaving") == []
    await shard.run("completed")
    assert await shard.members("leaving") == ["t"]


async def test_a_sweep_makes_an_entry_anew_that_was_lost(shard: Shard) -> None:
    await shard.add(row("a", keep="5000,"))
    await shard.run("completed")
    await shard.command("DEL", shard.shard_key("due"))
    assert await shard.sweep(SweepQueue(QUEUE, 10, 10**9, 10, 10**9)) == 0
    await _look(shard, 5001)
    assert await shard.state("a") is None


async def test_a_foreign_set_keeps_no_job_from_ending(shard: Shard, planted: set[str]) -> None:
    planted.add(shard.key("leaving", QUEUE))
    await shard.command("SET", shard.key("leaving", QUEUE), "foreign")
    await shard.add(row("a", keep="0,"))
    await shard.run("completed")
    assert await shard.state("a") == "completed"
    assert 0 < await shard.ttl("job", "a") <= 7 * 86_400_000
    await _look(shard)
    assert await shard.sweep(SweepQueue(QUEUE, 0, 0, 0, 0)) == 0


async def test_a_job_that_is_superseded_goes_by_its_own_time(shard: Shard) -> None:
    await shard.add(row("a", key="k", print="p", keep=",0"))
    await shard.add(row("b", key="k", print="q", meeting=SUPERSEDE))
    assert (await shard.members("leaving"), await shard.members("cancelled")) == (["a"], [])


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_pages_show_what_goes_by_itself_behind_all_others(shard: Shard, limit: int) -> None:
    for job, keep in (("a", ""), ("b", "900000,"), ("c", ""), ("d", "800000,"), ("e", ",900000")):
        await shard.add(row(job, keep=keep))
        await shard.run("failed" if job == "e" else "completed", text="{}")
        shard.now += 1000
    for state, expected in (("completed", ["c", "a", "b", "d"]), ("failed", ["e"]), ("cancelled", [])):
        found: list[str] = []
        cursor: Cursor | None = Cursor()
        while cursor is not None:
            page = await shard.store.inspection.jobs(QUEUE, state, cursor=cursor, limit=limit)
            found += [each.id for each in page.jobs]
            cursor = page.cursor
        assert found == expected
