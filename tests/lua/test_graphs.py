"""graph.lua: adding trees whole, in pieces and again; keys, delays, timeouts, priority; what is never opened."""

from __future__ import annotations

import msgspec
import pytest
from groves import ROOTS, STEPS, Grove, make_tree, pieces_of
from shards import START, turn_queue

from eventbus.store.rows import REUSE, SUPERSEDE
from eventbus.store.trees import TreeVerdict

_CHAIN = {"a": "", "b": "a", "c": "b"}
_DIAMOND = {"a": "", "b": "a", "c": "a", "d": "b c"}
_SIZES = [1, 2, 3, 100]


@pytest.mark.parametrize("size", _SIZES)
async def test_a_tree_runs_in_the_order_of_its_needs_however_it_was_cut(grove: Grove, size: int) -> None:
    assert await grove.add(make_tree(_DIAMOND), size) == TreeVerdict("new", "f", "", "")
    assert await grove.run() == ["f/a"]
    assert await grove.run() == ["f/b", "f/c"]
    assert await grove.run() == ["f/d"]
    assert await grove.states() == {"f": "waiting", **dict.fromkeys("abcd", "completed")}
    assert await grove.run() == ["f"]
    assert await grove.done() == ["a", "b", "c", "d"]
    assert await grove.claim() == []


@pytest.mark.parametrize("size", _SIZES)
async def test_nothing_runs_before_the_last_piece(grove: Grove, size: int) -> None:
    *first, last = pieces_of(make_tree(dict.fromkeys("abcdef", "")), size)
    for chunk in first:
        await grove.send(chunk)
        assert await grove.claim() == []
        assert (await grove.look()).root["pending"] == "1"
    await grove.send(last)
    assert sorted(await grove.claim()) == [f"f/{each}" for each in "abcdef"]
    assert "pending" not in (await grove.look()).root


async def test_late_copies_of_any_piece_change_nothing(grove: Grove) -> None:
    chunks = pieces_of(make_tree(_DIAMOND), 2)
    for place, chunk in enumerate(chunks):
        await grove.send(chunk)
        for late in chunks[: place + 1]:
            assert (await grove.send(late)).word == "new"
    while jobs := await grove.claim():
        await grove.end("completed", *jobs)
        before = (await grove.states(), await grove.keys(), await grove.shard.members("ready", STEPS))
        for late in chunks:
            assert (await grove.send(late)).word == "new"
        assert (await grove.states(), await grove.keys(), await grove.shard.members("ready", STEPS)) == before
    assert await grove.done() == ["a", "b", "c", "d"]
    assert len((await grove.look()).members) == 4


async def test_a_middle_piece_without_the_first_is_gone(grove: Grove) -> None:
    _, second, third = pieces_of(make_tree(_CHAIN), 2)[:1] + pieces_of(make_tree(_CHAIN), 1)[1:3]
    assert (await grove.send(second)).word == "gone"
    assert (await grove.send(third)).word == "gone"
    assert await grove.keys() == []


async def test_what_is_not_opened_goes_after_a_minute_with_its_key_and_who_joined_is_told(
    grove: Grove,
) -> None:
    shard = grove.shard
    await shard.open_replies()
    first, second = pieces_of(make_tree(_CHAIN, key="k", print="p"), 2, reply=True)
    await grove.send(first)
    joiner = pieces_of(make_tree(_CHAIN, root="g", key="k", print="p"), reply=True)[0]
    assert await grove.send(joiner) == TreeVerdict("joined", "f", "open", "")
    shard.now += 59_999
    await grove.turn()
    assert (await grove.states())["f"] == "waiting-children"
    shard.now += 1
    answer = await grove.turn()
    assert (answer.claims, answer.next_due) == ([], -1)
    assert await grove.states() == {"f": "unknown"}
    ((told,),) = await shard.replies()
    assert told[:3] == ("f", "cancelled", 1)
    assert "not added whole" in told[3]
    assert [each for each in await grove.keys() if not each.startswith("replies")] == []
    assert (await grove.send(second)).word == "gone"
    again = make_tree(_CHAIN, root="h", key="k", print="p")
    assert (await grove.add(again)).word == "new"


async def test_a_tree_that_is_cancelled_before_it_is_whole_takes_no_more_and_is_undone(grove: Grove) -> None:
    first, second = pieces_of(make_tree(_CHAIN), 2)
    await grove.send(first)
    assert await grove.cancel() == "asked"
    assert (await grove.send(second)).word == "gone"
    assert await grove.claim() == ["f"]
    grove.shard.now += 60_000
    await grove.turn(want=0)
    assert await grove.states() == {"f": "active", "a": "cancelled"}
    await grove.checkpoint("f", acknowledges=True)
    await grove.end("cancelled", "f", text="{}")
    assert await grove.outcome("f") == ("cancelled", "{}")


async def test_a_member_that_is_cancelled_before_its_tree_is_whole_stops_it(grove: Grove) -> None:
    first, second, third = pieces_of(make_tree(_DIAMOND, ons={"b": "ignore", "c": "wake"}), 2)
    await grove.send(first)
    assert await grove.cancel("f/a") == "ended"
    assert [(await grove.send(each)).word for each in (second, third)] == ["gone", "gone"]
    page = await grove.look()
    assert (page.root["stop"], page.root["stopper"]) == ("failed", "f/a")
    assert await grove.states() == {"f": "waiting", "a": "cancelled"}
    await grove.undo()


# keys


async def test_a_key_joins_an_open_tree_and_hears_its_outcome(grove: Grove) -> None:
    await grove.shard.open_replies("em")
    await grove.add(make_tree(_CHAIN, key="k", print="p"), reply=True)
    joined = await grove.add(make_tree(_CHAIN, root="g", key="k", print="p"), reply=True)
    assert joined == TreeVerdict("joined", "f", "open", "")
    other = await grove.add(make_tree(_CHAIN, root="h", key="k", print="q"))
    assert other == TreeVerdict("other", "f", "open", "")
    assert await grove.run_all() == ["f/a", "f/b", "f/c", "f"]
    assert await grove.shard.replies("em") == [[("f", "completed", 1, "1")]]
    late = await grove.add(make_tree(_CHAIN, root="i", key="k", print="p"))
    assert late == TreeVerdict("joined", "f", "completed", "1")


async def test_a_key_of_a_tree_that_failed_is_free_unless_its_outcome_is_asked_for(grove: Grove) -> None:
    await grove.add(make_tree({"a": ""}, key="k", print="p"))
    await grove.run("failed")
    await grove.undo()
    reused = await grove.add(make_tree({"a": ""}, root="g", key="k", print="p", meeting=REUSE))
    assert reused == TreeVerdict("joined", "f", "failed", '{"message":"undone"}')
    assert (await grove.add(make_tree({"a": ""}, root="h", key="k", print="p"))).word == "new"
    assert await grove.run_all() == ["h/a", "h"]


async def test_a_tree_that_supersedes_stops_the_one_before(grove: Grove) -> None:
    await grove.add(make_tree(_CHAIN, key="k", print="p"))
    await grove.run()
    assert (await grove.add(make_tree({"x": ""}, root="g", key="k", print="p", meeting=SUPERSEDE))).job == "g"
    assert await grove.states() == {"f": "waiting", "a": "completed", "b": "cancelled", "c": "cancelled"}
    assert sorted(await grove.claim()) == ["f", "g/x"]
    assert grove.held["f"][0].stop == "cancelled"
    joined = await grove.add(make_tree({"x": ""}, root="h", key="k", print="p"))
    assert joined.job == "g"


async def test_two_trees_of_one_call_with_one_key(grove: Grove) -> None:
    chunks = [pieces_of(make_tree({"a": ""}, root=root, key="k", print="p"))[0] for root in "fg"]
    verdicts = await grove.shard.store.trees.add("em", chunks, deadline=1e12, now=START)
    assert verdicts == [TreeVerdict("new", "f", "", ""), TreeVerdict("joined", "f", "open", "")]
    assert await grove.claim() == ["f/a"]
    superseding = [
        pieces_of(make_tree({"a": "", "b": "a"}, root=root, key="l", print="p", meeting=SUPERSEDE))[0]
        for root in "hi"
    ]
    await grove.shard.store.trees.add("em", superseding, deadline=1e12, now=START)
    assert await grove.states("h") == {"h": "waiting", "a": "cancelled", "b": "cancelled"}
    assert sorted(await grove.claim()) == ["h", "i/a"]


# when, and in which order


@pytest.mark.parametrize("size", [1, 100])
async def test_a_delayed_member_starts_when_it_is_due_and_a_worker_is_woken_for_it(
    grove: Grove, size: int
) -> None:
    await grove.shard.announce(queue=STEPS)
    await grove.add(make_tree({"a": "", "b": "a"}, delays={"a": 0.5}), size)
    assert await grove.shard.members("wake", "pool") == [STEPS]
    answer = await grove.turn()
    assert (answer.claims, answer.next_due) == ([], START + 500)
    grove.shard.now += 500
    assert await grove.run_all() == ["f/a", "f/b", "f"]


@pytest.mark.parametrize("size", [1, 100])
async def test_a_root_without_members_to_wait_for_runs_at_once_or_when_it_is_due(
    grove: Grove, size: int
) -> None:
    await grove.add(make_tree({}), size)
    assert await grove.run_all() == ["f"]
    await grove.add(make_tree({}, root="g", delay=1.0), size)
    assert await grove.claim() == []
    grove.shard.now += 1000
    assert await grove.run_all() == ["g"]


@pytest.mark.parametrize("size", _SIZES)
async def test_the_timeout_of_a_tree_counts_from_when_its_root_is_due(grove: Grove, size: int) -> None:
    await grove.add(make_tree({"a": "", "b": "a"}, timeout=1.0), size)
    answer = await grove.turn()
    assert (answer.claims[0].id, answer.next_due) == ("f/a", START + 1000)
    grove.shard.now += 999
    await grove.turn(want=0)
    assert "stop" not in (await grove.look()).root
    grove.shard.now += 1
    await grove.turn(want=0)
    assert (await grove.look()).root["stop"] == "timeout"
    assert await grove.states() == {"f": "waiting-children", "a": "active", "b": "cancelled"}


async def test_a_tree_that_ended_has_no_deadline_any_more(grove: Grove) -> None:
    await grove.add(make_tree({"a": ""}, timeout=1.0))
    assert await grove.run_all() == ["f/a", "f"]
    assert await grove.shard.members("deadlines", "") == []
    assert await grove.shard.members("roots", ROOTS) == []
    assert await grove.shard.store.trees.root_queues() == [ROOTS]


async def test_members_of_a_higher_priority_come_first(grove: Grove) -> None:
    await grove.add(make_tree(dict.fromkeys("ab", "")))
    urgent = make_tree({"a": "", "b": "a"}, root="g")
    members = [msgspec.structs.replace(each, priority=-1) for each in urgent.members]
    await grove.add(msgspec.structs.replace(urgent, members=members))
    assert await grove.claim() == ["g/a", "f/a", "f/b"]
    await grove.end("delayed", "f/a", attempts=1)
    await grove.end("completed", "g/a")
    assert await grove.claim() == ["g/b", "f/a"]


async def test_a_member_is_claimed_with_the_body_of_its_root(grove: Grove) -> None:
    for root, body in (("f", '{"small":1}'), ("g", '"' + "x" * 500 + '"')):
        await grove.add(make_tree({"a": "", "b": ""}, root=root, body=body))
        await grove.claim()
        assert {grove.held[f"{root}/{each}"][0].body for each in "ab"} == {body}
        await grove.end("completed", f"{root}/a", f"{root}/b")
        assert await grove.claim() == [root]
        assert grove.held[root][0].body == body


async def test_open_roots_are_listed_newest_first_and_ended_ones_by_their_state(grove: Grove) -> None:
    for root in "fgh":
        await grove.add(make_tree({"a": ""}, root=root))
        grove.shard.now += 1
    roots = grove.shard.store.trees.roots
    assert await roots(ROOTS, "open", first=0, limit=10) == ["h", "g", "f"]
    assert await roots(ROOTS, "open", first=1, limit=1) == ["g"]
    await grove.run()
    await grove.run()
    assert await roots(ROOTS, "open", first=0, limit=10) == []
    assert sorted(await roots(ROOTS, "completed", first=0, limit=10)) == ["f", "g", "h"]


async def test_a_worker_that_serves_only_steps_wakes_those_that_serve_the_root(grove: Grove) -> None:
    await grove.shard.announce(queue=ROOTS, pool="roots")
    await grove.add(make_tree({"a": ""}))
    await grove.claim()
    assert await grove.shard.members("wake", "roots") == []
    await grove.end("completed", "f/a", queues=(turn_queue(STEPS),), want=10)
    assert await grove.shard.members("wake", "roots") == [ROOTS]
    assert await grove.claim(worker="x") == ["f"]
