"""graph.lua: adding trees whole, in pieces and again; keys, delays, timeouts, priority; what is never
opened.
"""

from __future__ import annotations

import msgspec
import pytest
from drivers.shards import START, turn_queue
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree, pieces_of
from drivers.waits import child

from eventbus.emit.job_tree import Member, Tree
from eventbus.store.calls.tree_store import Chunk, TreeVerdict
from eventbus.store.scripting.script_rows import REUSE, SUPERSEDE

_CHAIN = {"a": "", "b": "a", "c": "b"}
_DIAMOND = {"a": "", "b": "a", "c": "a", "d": "b c"}
_SIZES = [1, 2, 3, 100]


@pytest.mark.parametrize("size", _SIZES)
async def test_a_tree_runs_in_the_order_of_its_needs_however_it_was_cut(
    driver: TreeDriver, size: int
) -> None:
    assert await driver.add(make_tree(_DIAMOND), size) == TreeVerdict("new", "f", "", "")
    assert await driver.run() == ["f/a"]
    assert await driver.run() == ["f/b", "f/c"]
    assert await driver.run() == ["f/d"]
    assert await driver.states() == {"f": "waiting", **dict.fromkeys("abcd", "completed")}
    assert await driver.run() == ["f"]
    assert await driver.done() == ["a", "b", "c", "d"]
    assert await driver.claim() == []


@pytest.mark.parametrize("size", _SIZES)
async def test_nothing_runs_before_the_last_piece(driver: TreeDriver, size: int) -> None:
    *first, last = pieces_of(make_tree(dict.fromkeys("abcdef", "")), size)
    for chunk in first:
        await driver.send(chunk)
        assert await driver.claim() == []
        assert (await driver.look()).root["pending"] == "1"
    await driver.send(last)
    assert sorted(await driver.claim()) == [f"f/{each}" for each in "abcdef"]
    assert "pending" not in (await driver.look()).root


async def test_late_copies_of_any_piece_change_nothing(driver: TreeDriver) -> None:
    chunks = pieces_of(make_tree(_DIAMOND), 2)
    for place, chunk in enumerate(chunks):
        await driver.send(chunk)
        for late in chunks[: place + 1]:
            assert (await driver.send(late)).word == "new"
    while jobs := await driver.claim():
        await driver.end("completed", *jobs)
        before = (await driver.states(), await driver.keys(), await driver.shard.members("ready", STEPS))
        for late in chunks:
            assert (await driver.send(late)).word == "new"
        assert (
            await driver.states(),
            await driver.keys(),
            await driver.shard.members("ready", STEPS),
        ) == before
    assert await driver.done() == ["a", "b", "c", "d"]
    assert len((await driver.look()).members) == 4


async def test_a_middle_piece_without_the_first_is_gone(driver: TreeDriver) -> None:
    _, second, third = pieces_of(make_tree(_CHAIN), 2)[:1] + pieces_of(make_tree(_CHAIN), 1)[1:3]
    assert (await driver.send(second)).word == "gone"
    assert (await driver.send(third)).word == "gone"
    assert await driver.keys() == []


async def test_what_is_not_opened_goes_after_a_minute_with_its_key_and_its_adder_is_told(
    driver: TreeDriver,
) -> None:
    shard = driver.shard
    await shard.open_replies()
    first, second = pieces_of(make_tree(_CHAIN, key="k", print="p"), 2, reply=True)
    await driver.send(first)
    shard.now += 59_999
    await driver.turn()
    assert (await driver.states())["f"] == "waiting-children"
    shard.now += 1
    answer = await driver.turn()
    assert (answer.claims, answer.next_due) == ([], -1)
    assert await driver.states() == {"f": "unknown"}
    ((told,),) = await shard.replies()
    assert told[:3] == ("f", "cancelled", 1)
    assert "not added whole" in told[3]
    assert [each for each in await driver.keys() if not each.startswith("replies")] == []
    assert (await driver.send(second)).word == "gone"
    again = make_tree(_CHAIN, root="h", key="k", print="p")
    assert (await driver.add(again)).word == "new"


_PENDING = TreeVerdict("pending", "g", "", "")


def _keyed(root: str, size: int, digest: str = "p") -> list[Chunk]:
    return pieces_of(make_tree(_CHAIN, root=root, key="k", print=digest), size, reply=True)


async def test_whose_key_stands_for_a_tree_that_is_not_whole_asks_until_it_is(driver: TreeDriver) -> None:
    first, *others, last = _keyed("f", 1)
    (whole,) = _keyed("g", 10)
    await driver.send(first)
    for each in others:  # its adder lives: each piece counts
        driver.shard.now += 1500
        assert await driver.send(whole) == _PENDING
        await driver.send(each)
    driver.shard.now += 2000
    assert await driver.send(whole) == _PENDING
    assert (await driver.send(last)).word == "new"
    assert await driver.send(whole) == TreeVerdict("joined", "f", "open", "")
    assert (await driver.send(_keyed("h", 10, "q")[0])).word == "other"


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_tree_whose_adder_is_silent_gives_way_to_the_next_one_with_its_key(
    driver: TreeDriver, is_whole: bool
) -> None:
    shard = driver.shard
    await shard.open_replies()
    first, second, last = pieces_of(make_tree(_CHAIN, key="k", print="p"), 1, reply=True)[:3]
    await driver.send(first)
    await driver.send(second)
    shard.now += 2001
    next_one = _keyed("g", 10 if is_whole else 2)
    assert (await driver.send(next_one[0])).word == "new"
    assert await driver.states() == {"f": "unknown"}
    assert (await driver.send(last)).word == "gone"
    if not is_whole:  # the late adder begins again, and has to ask
        assert await driver.send(first) == TreeVerdict("pending", "f", "", "")
        assert (await driver.send(next_one[1])).word == "new"
    assert await driver.send(first) == TreeVerdict("joined", "g", "open", "")
    assert await shard.replies() == [], "nobody is told of a tree that nobody was promised"
    while await driver.run():
        pass
    assert await shard.state("g") == "completed"
    told = [row[:2] for entry in await shard.replies() for row in entry]
    assert told == [("g", "completed")]
    assert await shard.command("ZRANGE", shard.shard_key("due"), 0, -1) == []


async def test_of_two_adders_that_both_stall_one_tree_is_whole_in_the_end(driver: TreeDriver) -> None:
    one, two = _keyed("f", 1), _keyed("g", 1)
    await driver.send(one[0])
    driver.shard.now += 2001
    await driver.send(two[0])
    driver.shard.now += 2001
    assert (await driver.send(one[1])).word == "gone"
    (three,) = _keyed("h", 10)
    assert (await driver.send(three)).word == "new"
    for late in (two[1], one[2]):
        assert (await driver.send(late)).word == "gone"
    for late in (one[0], two[0]):
        assert await driver.send(late) == TreeVerdict("joined", "h", "open", "")
    assert [each for each in (await driver.turn()).claims if not each.id.startswith("h")] == []


async def test_a_tree_that_is_cancelled_before_it_is_whole_takes_no_more_and_is_undone(
    driver: TreeDriver,
) -> None:
    first, second = pieces_of(make_tree(_CHAIN), 2)
    await driver.send(first)
    assert await driver.cancel() == "asked"
    assert (await driver.send(second)).word == "gone"
    assert await driver.claim() == ["f"]
    driver.shard.now += 60_000
    await driver.turn(want=0)
    assert await driver.states() == {"f": "active", "a": "cancelled"}
    await driver.checkpoint("f", acknowledges=True)
    await driver.end("cancelled", "f", text="{}")
    assert await driver.outcome("f") == ("cancelled", "{}")


async def test_a_member_that_is_cancelled_before_its_tree_is_whole_stops_it(driver: TreeDriver) -> None:
    first, second, third = pieces_of(make_tree(_DIAMOND, ons={"b": "ignore", "c": "wake"}), 2)
    await driver.send(first)
    assert await driver.cancel("f/a") == "ended"
    assert [(await driver.send(each)).word for each in (second, third)] == ["gone", "gone"]
    page = await driver.look()
    assert (page.root["stop"], page.root["stopper"]) == ("failed", "f/a")
    assert await driver.states() == {"f": "waiting", "a": "cancelled"}
    await driver.undo()


async def test_a_nested_tree_that_is_cancelled_before_its_tree_is_whole_stops_that(
    driver: TreeDriver,
) -> None:
    members = [
        Member("f/n", STEPS, is_root=True),
        Member("f/a", STEPS, needs=["f/n"], on="wake"),
        Member("f/b", STEPS),
    ]
    first, _ = pieces_of(Tree("f", ROOTS, "{}", members, ["f/a", "f/b"], on="fail"), 3)
    await driver.send(first)
    assert await driver.cancel("f/n") == "asked"
    assert await driver.claim() == [], "nothing of it runs"
    assert (await driver.look()).root["state"] == "failed"


# keys


async def test_a_key_joins_an_open_tree_and_hears_its_outcome(driver: TreeDriver) -> None:
    await driver.shard.open_replies("em")
    await driver.add(make_tree(_CHAIN, key="k", print="p"), reply=True)
    joined = await driver.add(make_tree(_CHAIN, root="g", key="k", print="p"), reply=True)
    assert joined == TreeVerdict("joined", "f", "open", "")
    other = await driver.add(make_tree(_CHAIN, root="h", key="k", print="q"))
    assert other == TreeVerdict("other", "f", "open", "")
    assert await driver.run_all() == ["f/a", "f/b", "f/c", "f"]
    assert await driver.shard.replies("em") == [[("f", "completed", 1, "1")]]
    late = await driver.add(make_tree(_CHAIN, root="i", key="k", print="p"))
    assert late == TreeVerdict("joined", "f", "completed", "1")


async def test_a_key_of_a_tree_that_failed_is_free_unless_its_outcome_is_asked_for(
    driver: TreeDriver,
) -> None:
    await driver.add(make_tree({"a": ""}, key="k", print="p"))
    await driver.run("failed")
    await driver.undo()
    reused = await driver.add(make_tree({"a": ""}, root="g", key="k", print="p", meeting=REUSE))
    assert reused == TreeVerdict("joined", "f", "failed", '{"message":"undone"}')
    assert (await driver.add(make_tree({"a": ""}, root="h", key="k", print="p"))).word == "new"
    assert await driver.run_all() == ["h/a", "h"]


async def test_a_tree_that_supersedes_stops_the_one_before(driver: TreeDriver) -> None:
    await driver.add(make_tree(_CHAIN, key="k", print="p"))
    await driver.run()
    assert (
        await driver.add(make_tree({"x": ""}, root="g", key="k", print="p", meeting=SUPERSEDE))
    ).job == "g"
    assert await driver.states() == {"f": "waiting", "a": "completed", "b": "cancelled", "c": "cancelled"}
    assert sorted(await driver.claim()) == ["f", "g/x"]
    assert driver.held["f"][0].stop == "cancelled"
    joined = await driver.add(make_tree({"x": ""}, root="h", key="k", print="p"))
    assert joined.job == "g"


async def test_two_trees_of_one_call_with_one_key(driver: TreeDriver) -> None:
    chunks = [pieces_of(make_tree({"a": ""}, root=root, key="k", print="p"))[0] for root in "fg"]
    verdicts = await driver.shard.store.trees.add("em", chunks, deadline=1e12, now=START)
    assert verdicts == [TreeVerdict("new", "f", "", ""), TreeVerdict("joined", "f", "open", "")]
    assert await driver.claim() == ["f/a"]
    superseding = [
        pieces_of(make_tree({"a": "", "b": "a"}, root=root, key="l", print="p", meeting=SUPERSEDE))[0]
        for root in "hi"
    ]
    await driver.shard.store.trees.add("em", superseding, deadline=1e12, now=START)
    assert await driver.states("h") == {"h": "waiting", "a": "cancelled", "b": "cancelled"}
    assert sorted(await driver.claim()) == ["h", "i/a"]


# when, and in which order


@pytest.mark.parametrize("size", [1, 100])
async def test_a_delayed_member_starts_when_it_is_due_and_a_worker_is_woken_for_it(
    driver: TreeDriver, size: int
) -> None:
    await driver.shard.announce(queue=STEPS)
    await driver.add(make_tree({"a": "", "b": "a"}, delays={"a": 0.5}), size)
    assert await driver.shard.members("wake", "pool") == [STEPS]
    answer = await driver.turn()
    assert (answer.claims, answer.next_due) == ([], START + 500)
    driver.shard.now += 500
    assert await driver.run_all() == ["f/a", "f/b", "f"]


@pytest.mark.parametrize("size", [1, 100])
async def test_a_member_that_needs_another_is_delayed_when_that_ends_before_it_is_due(
    driver: TreeDriver, size: int
) -> None:
    await driver.shard.announce(queue=STEPS)
    await driver.add(make_tree({"a": "", "b": "a", "c": "a"}, delays={"b": 0.5}), size)
    assert await driver.run() == ["f/a"]
    assert await driver.states() == {
        "f": "waiting-children",
        "a": "completed",
        "b": "delayed",
        "c": "waiting",
    }
    assert await driver.run() == ["f/c"]
    assert (await driver.turn()).next_due == START + 500
    driver.shard.now += 500
    assert await driver.run_all() == ["f/b", "f"]


async def test_a_member_whose_needs_end_after_it_is_due_starts_then(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}, delays={"b": 0.5}))
    driver.shard.now += 500
    assert await driver.run_all() == ["f/a", "f/b", "f"]


@pytest.mark.parametrize("size", [1, 100])
async def test_a_root_that_needs_members_is_delayed_when_they_end_before_it_is_due(
    driver: TreeDriver, size: int
) -> None:
    await driver.add(make_tree({"a": ""}, delay=1.0), size)
    assert await driver.run_all() == ["f/a"]
    assert (await driver.states())["f"] == "delayed"
    driver.shard.now += 999
    assert await driver.run_all() == []
    driver.shard.now += 1
    assert await driver.run_all() == ["f"]


async def test_a_root_that_deals_with_the_failure_of_a_member_does_not_wait_until_it_is_due(
    driver: TreeDriver,
) -> None:
    await driver.add(make_tree({"a": ""}, delay=1.0))
    await driver.claim()
    await driver.end("failed", "f/a", attempts=1)
    assert await driver.claim() == ["f"]


async def test_a_tree_that_is_cancelled_while_a_member_is_delayed_behind_its_needs_ends(
    driver: TreeDriver,
) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}, delays={"b": 0.5}))
    await driver.run()
    await driver.cancel()
    assert (await driver.states())["b"] == "cancelled"
    assert await driver.shard.members("delayed", STEPS) == []


async def test_a_member_that_has_begun_and_waits_for_children_goes_on_when_they_end(
    driver: TreeDriver,
) -> None:
    """Its delay is one of its first start."""
    await driver.add(make_tree({"a": "", "b": "a"}, delays={"b": 0.5}))
    driver.shard.now += 500
    await driver.run()
    await driver.claim()
    driver.shard.now -= 400  # the clock is set back
    await driver.wait("f/b", "c", adds=[child("c")])
    assert await driver.run() == ["f/c"]
    assert await driver.claim() == ["f/b"]


@pytest.mark.parametrize("size", [1, 100])
async def test_a_root_without_members_to_wait_for_runs_at_once_or_when_it_is_due(
    driver: TreeDriver, size: int
) -> None:
    await driver.add(make_tree({}), size)
    assert await driver.run_all() == ["f"]
    await driver.add(make_tree({}, root="g", delay=1.0), size)
    assert await driver.claim() == []
    driver.shard.now += 1000
    assert await driver.run_all() == ["g"]


@pytest.mark.parametrize("size", _SIZES)
async def test_the_timeout_of_a_tree_counts_from_when_its_root_is_due(driver: TreeDriver, size: int) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}, timeout=1.0), size)
    answer = await driver.turn()
    assert (answer.claims[0].id, answer.next_due) == ("f/a", START + 1000)
    driver.shard.now += 999
    await driver.turn(want=0)
    assert "stop" not in (await driver.look()).root
    driver.shard.now += 1
    await driver.turn(want=0)
    assert (await driver.look()).root["stop"] == "timeout"
    assert await driver.states() == {"f": "waiting-children", "a": "active", "b": "cancelled"}


async def test_a_tree_that_ended_has_no_deadline_any_more(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": ""}, timeout=1.0))
    assert await driver.run_all() == ["f/a", "f"]
    assert await driver.shard.members("due", "") == []
    assert await driver.shard.members("roots", ROOTS) == []
    assert await driver.shard.store.trees.root_queues() == [ROOTS]


async def test_members_of_a_higher_priority_come_first(driver: TreeDriver) -> None:
    await driver.add(make_tree(dict.fromkeys("ab", "")))
    urgent = make_tree({"a": "", "b": "a"}, root="g")
    members = [msgspec.structs.replace(each, priority=-1) for each in urgent.members]
    await driver.add(msgspec.structs.replace(urgent, members=members))
    assert await driver.claim() == ["g/a", "f/a", "f/b"]
    await driver.end("delayed", "f/a", attempts=1)
    await driver.end("completed", "g/a")
    assert await driver.claim() == ["g/b", "f/a"]


async def test_a_member_is_claimed_with_the_body_of_its_root(driver: TreeDriver) -> None:
    for root, body in (("f", '{"small":1}'), ("g", '"' + "x" * 500 + '"')):
        await driver.add(make_tree({"a": "", "b": ""}, root=root, body=body))
        await driver.claim()
        assert {driver.held[f"{root}/{each}"][0].body for each in "ab"} == {body}
        await driver.end("completed", f"{root}/a", f"{root}/b")
        assert await driver.claim() == [root]
        assert driver.held[root][0].body == body


async def test_open_roots_are_listed_newest_first_and_ended_ones_by_their_state(driver: TreeDriver) -> None:
    for root in "fgh":
        await driver.add(make_tree({"a": ""}, root=root))
        driver.shard.now += 1
    roots = driver.shard.store.trees.roots
    assert await roots(ROOTS, "open", first=0, limit=10) == ["h", "g", "f"]
    assert await roots(ROOTS, "open", first=1, limit=1) == ["g"]
    await driver.run()
    await driver.run()
    assert await roots(ROOTS, "open", first=0, limit=10) == []
    assert sorted(await roots(ROOTS, "completed", first=0, limit=10)) == ["f", "g", "h"]


async def test_a_worker_that_serves_only_steps_wakes_those_that_serve_the_root(driver: TreeDriver) -> None:
    await driver.shard.announce(queue=ROOTS, pool="roots")
    await driver.add(make_tree({"a": ""}))
    await driver.claim()
    assert await driver.shard.members("wake", "roots") == []
    await driver.end("completed", "f/a", queues=(turn_queue(STEPS),), want=10)
    assert await driver.shard.members("wake", "roots") == [ROOTS]
    assert await driver.claim(worker="x") == ["f"]
