"""Roots without members: added as emissions are or as trees, each becomes the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drivers.lone_roots import Way, add_root, is_brief, lists
from drivers.shards import START, Shard, row, turn_queue
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree, pieces_of

from eventbus.emit.job_tree import row_of
from eventbus.store.calls.queries import Cursor
from eventbus.store.calls.tree_store import TreeVerdict
from eventbus.store.scripting.packing import AddRows
from eventbus.store.scripting.script_rows import REUSE, SUPERSEDE, AddQueue, SweepQueue

_LARGE = '"' + "x" * 500 + '"'
_QUEUES = (turn_queue(ROOTS), turn_queue(STEPS))


# what is usual


async def test_it_completes_and_its_emitter_is_told(driver: TreeDriver, way: Way) -> None:
    await driver.shard.open_replies()
    assert await add_root(driver, way, reply=True) == TreeVerdict("new", "f", "", "")
    assert await lists(driver) == {"ready": ["f"], "roots": ["f"]}
    assert await driver.claim() == ["f"]
    claim = driver.held["f"][0]
    assert (claim.body, claim.attempts, claim.stalls, claim.created, claim.due, claim.stop) == (
        '{"d":1}', 0, 0, START, START, "",
    )  # fmt: skip
    assert await driver.states() == {"f": "active"}
    await driver.end("completed", "f", text=_LARGE)
    assert await lists(driver) == {"completed": ["f"]}
    assert await driver.outcome("f") == ("completed", _LARGE)
    assert await driver.shard.replies() == [[("f", "completed", 1, _LARGE)]]
    assert await driver.claim() == []


async def test_its_record_is_brief_and_says_what_that_of_a_tree_says(driver: TreeDriver) -> None:
    await add_root(driver, "alone")
    await add_root(driver, "tree", "g")
    assert (await is_brief(driver), await is_brief(driver, "g")) == (True, False)
    for _ in range(2):
        one, other = await driver.shard.record("f"), await driver.shard.record("g")
        assert one == other
        pages = [(await driver.look(each)).root for each in "fg"]
        for page in pages:
            page.pop("now")
        assert pages[0] == pages[1]
        assert await driver.claim() in (["f", "g"], [])
    await driver.end("completed", "f", "g")
    assert await driver.shard.record("f") == await driver.shard.record("g")
    assert (await is_brief(driver), await is_brief(driver, "g")) == (True, False)
    assert await driver.shard.command("EXISTS", driver.shard.key("more", "f")) == 0


async def test_many_of_several_queues_with_large_bodies_and_timeouts(driver: TreeDriver) -> None:
    trees = [
        make_tree({}, root=f"f{i}", body=_LARGE if i % 2 else "{}", timeout=5.0 if i % 3 == 0 else 0.0)
        for i in range(9)
    ]
    assert {each.word for each in await driver.add_alone(*trees)} == {"new"}
    assert sorted(await driver.shard.members("due", "")) == ["timeout:f0", "timeout:f3", "timeout:f6"]
    assert await driver.claim() == [tree.id for tree in trees]
    assert {tree.id: driver.held[tree.id][0].body for tree in trees} == {tree.id: tree.body for tree in trees}
    await driver.end("completed", *[tree.id for tree in trees])
    assert await lists(driver) == {"completed": [tree.id for tree in trees]}


async def test_a_repeat_of_some_in_another_call_changes_nothing(driver: TreeDriver) -> None:
    await driver.add_alone(make_tree({}, root="f", timeout=5.0))
    before = await lists(driver)
    driver.shard.now += 10
    assert {each.word for each in await driver.add_alone(make_tree({}, root="f", timeout=5.0))} == {"new"}
    assert await lists(driver) == before
    assert await driver.shard.score("due", "", "timeout:f") == START + 5000
    await driver.add_alone(make_tree({}, root="g"), make_tree({}, root="f", timeout=5.0))
    assert await driver.claim() == ["f", "g"]


async def test_delay_priority_and_timeout(driver: TreeDriver, way: Way) -> None:
    await driver.shard.announce(queue=ROOTS)
    await add_root(driver, way, delay=1.0, timeout=2.0)
    await add_root(driver, way, "g")
    await add_root(driver, way, "h", priority=-1)
    assert await driver.shard.members("wake", "pool") == [ROOTS]
    assert await driver.shard.score("due", "", "timeout:f") == START + 3000
    record = await driver.shard.record("f")
    assert [record[each] for each in ("state", "tree", "on")] == ["delayed", "1", "wake"]
    assert await driver.claim() == ["h", "g"]
    driver.shard.now += 1000
    assert await driver.run() == ["f"]
    await driver.end("completed", "g", "h")
    assert await lists(driver) == {"completed": ["f", "g", "h"]}


async def test_a_deadline_that_is_the_earliest_wakes_a_worker(driver: TreeDriver, way: Way) -> None:
    async def is_woken(root: str, seconds: float) -> bool:
        await driver.shard.command("DEL", driver.shard.key("wake", "pool"))
        await add_root(driver, way, root, timeout=seconds)
        return await driver.shard.members("wake", "pool") == [ROOTS]

    await driver.shard.announce(queue=ROOTS)
    await add_root(driver, way)  # from now on the queue is not empty
    woken = [await is_woken(f"f{seconds}", seconds) for seconds in (60.0, 120.0, 0.0, 1.0, 2.0)]
    assert woken == [True, False, False, True, False]


async def test_a_lone_one_is_handed_to_an_idle_worker_and_settled_by_the_short_call(shard: Shard) -> None:
    driver = TreeDriver(shard, repeats=False)
    await shard.announce(queue=ROOTS)
    await shard.turn(idle=1, queues=_QUEUES)
    await add_root(driver, "alone", timeout=60.0)
    assert await shard.held() == ["f"]
    assert await shard.settle_one("f") == "done"
    assert await shard.settle_one("f") == "done"
    assert await lists(driver) == {"completed": ["f"], "due": ["hand:w/f"]}
    assert await is_brief(driver)


async def test_one_that_was_handed_over_is_stopped_like_any_other(shard: Shard) -> None:
    driver = TreeDriver(shard, repeats=False)
    await shard.announce(queue=ROOTS)
    await shard.turn(idle=1, queues=_QUEUES)
    await add_root(driver, "alone")
    assert await driver.cancel() == "asked"
    assert "cancel:f" in await shard.members("control", "w")
    assert await shard.settle_one("f") == "long"
    (job,) = (await shard.turn(want=0, queues=_QUEUES)).lost or ["f"]
    shard.now += 1500
    await shard.turn(want=0, queues=_QUEUES)  # it was not confirmed
    assert await driver.claim() == [job]
    assert driver.held["f"][0].stop == "cancelled"


# keys


async def test_a_key_joins_an_open_one_and_hears_its_outcome(driver: TreeDriver, way: Way) -> None:
    await driver.shard.open_replies()
    await driver.shard.open_replies("other")
    await add_root(driver, way, reply=True, key="k", print="p")
    assert await add_root(driver, way, "g", key="k", print="p", reply=True) == TreeVerdict(
        "joined", "f", "open", ""
    )
    assert await add_root(driver, way, "h", key="k", print="q") == TreeVerdict("other", "f", "open", "")
    assert await driver.run() == ["f"]
    assert await driver.shard.replies() == [[("f", "completed", 1, "1")]]
    assert await add_root(driver, way, "i", key="k", print="p") == TreeVerdict(
        "joined", "f", "completed", "1"
    )
    assert await lists(driver) == {"completed": ["f"]}


async def test_a_key_of_one_that_failed_is_free_unless_its_outcome_is_asked_for(
    driver: TreeDriver, way: Way
) -> None:
    await add_root(driver, way, key="k", print="p")
    await driver.run("failed")
    await driver.undo()
    reused = await add_root(driver, way, "g", key="k", print="p", meeting=REUSE)
    assert reused == TreeVerdict("joined", "f", "failed", '{"message":"undone"}')
    assert (await add_root(driver, way, "h", key="k", print="p")).word == "new"
    assert await driver.run() == ["h"]


@pytest.mark.parametrize("runs", [False, True])
async def test_one_that_supersedes_stops_the_one_before(driver: TreeDriver, way: Way, runs: bool) -> None:
    await add_root(driver, way, key="k", print="p")
    if runs:
        await driver.claim()
    verdict = await add_root(driver, way, "g", key="k", print="p", meeting=SUPERSEDE)
    assert verdict == TreeVerdict("new", "g", "", "")
    if runs:
        await driver.end("completed", "f")
    assert sorted(await driver.claim()) == ["f", "g"]
    assert driver.held["f"][0].stop == "cancelled"
    assert json.loads(await _noted(driver))["message"] == "superseded by job g, which has the same key"
    assert (await add_root(driver, way, "h", key="k", print="p")).job == "g"


async def _noted(driver: TreeDriver) -> str:
    return await driver.shard.command("GET", driver.shard.key("result", "f"))


async def test_two_of_one_call_with_one_key(shard: Shard) -> None:
    driver = TreeDriver(shard, repeats=False)
    trees = [make_tree({}, root=root, key="k", print="p") for root in "fg"]
    assert await driver.add_alone(*trees) == [
        TreeVerdict("new", "f", "", ""),
        TreeVerdict("joined", "f", "open", ""),
    ]
    superseding = [make_tree({}, root=root, key="l", print="p", meeting=SUPERSEDE) for root in "hi"]
    await driver.add_alone(*superseding)
    assert sorted(await driver.claim()) == ["f", "h", "i"]
    assert [driver.held[each][0].stop for each in "fhi"] == ["", "cancelled", ""]


async def test_a_key_that_stands_for_a_tree_which_is_not_whole_yet_is_to_be_asked_again(
    driver: TreeDriver,
) -> None:
    first, last = pieces_of(make_tree({"a": ""}, key="k", print="p"), 1)
    await driver.send(first)
    assert await add_root(driver, "alone", "g", key="k", print="p") == TreeVerdict(
        "pending", "f", "pending", ""
    )
    assert await driver.shard.members("roots", ROOTS) == ["f"]
    await driver.send(last)
    assert await add_root(driver, "alone", "g", key="k", print="p") == TreeVerdict("joined", "f", "open", "")


async def test_an_emission_whose_key_stands_for_a_tree_that_is_not_whole_yet_joins_it(shard: Shard) -> None:
    driver = TreeDriver(shard, repeats=False)
    await driver.send(pieces_of(make_tree({"a": ""}, key="k", print="p"), 1)[0])
    (verdict,) = await shard.add(row("e", key="k", print="p"), queues=[AddQueue(ROOTS, 1, "")])
    assert (verdict.word, verdict.job, verdict.state) == ("joined", "f", "open")


async def test_a_tree_with_members_joins_one_without(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way, key="k", print="p")
    joined = await driver.add(make_tree({"a": ""}, root="g", key="k", print="p"))
    assert joined == TreeVerdict("joined", "f", "open", "")


# lists, retention, and what runs again


async def test_open_ones_are_listed_newest_first_and_ended_ones_by_their_state(
    driver: TreeDriver, way: Way
) -> None:
    for root in "fgh":
        await add_root(driver, way, root)
        driver.shard.now += 1
    roots = driver.shard.store.trees.roots
    assert await roots(ROOTS, "open", first=0, limit=10) == ["h", "g", "f"]
    await driver.claim()
    assert await roots(ROOTS, "open", first=0, limit=10) == ["h", "g", "f"]
    await driver.end("completed", "f", "g")
    assert await roots(ROOTS, "open", first=0, limit=10) == ["h"]
    assert sorted(await roots(ROOTS, "completed", first=0, limit=10)) == ["f", "g"]
    assert await driver.shard.store.trees.root_queues() == [ROOTS]


async def test_pages_of_jobs_tell_of_it(driver: TreeDriver, way: Way) -> None:
    async def listed(state: str) -> list[str]:
        page = await driver.shard.store.inspection.jobs(ROOTS, state, cursor=Cursor(), limit=10)
        return [each.id for each in page.jobs]

    await add_root(driver, way)
    assert (await listed("waiting"), await listed("active")) == (["f"], [])
    await driver.claim()
    assert (await listed("waiting"), await listed("active")) == ([], ["f"])
    await driver.end("completed", "f")
    assert (await listed("active"), await listed("completed"), await listed("waiting-children")) == (
        [],
        ["f"],
        [],
    )


async def test_what_completed_is_removed_by_retention(driver: TreeDriver, way: Way) -> None:
    for root in ("f", "g"):
        await add_root(driver, way, root, body=_LARGE, timeout=60.0)
        await driver.claim()
        await driver.end("completed", root, text=_LARGE)
    driver.shard.now += 200_000
    assert await driver.shard.sweep(SweepQueue(ROOTS, 1, 10**9, 1, 10**9)) == 1
    assert await driver.outcome("f") == ("unknown", "")
    assert await driver.shard.sweep(SweepQueue(ROOTS, 0, 1000, 0, 1000)) == 1
    assert await driver.keys() == []


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_it_runs_again(driver: TreeDriver, way: Way, end: str) -> None:
    await add_root(driver, way, key="k", print="p")
    await driver.run(end)
    if end == "failed":
        await driver.undo()
    trees = driver.shard.store.trees
    given: dict[str, Any] = {"call": "c", "body": '{"run":2}', "deadline": 1e12, "now": driver.shard.now}
    assert await trees.restart("f", run=2, timeout_ms="", **given) == "other"
    assert await trees.restart("f", run=1, timeout_ms=5000, **given) == "restarted"
    assert await trees.restart("f", run=1, timeout_ms=5000, **given) == "restarted"
    assert await lists(driver) == {"ready": ["f"], "roots": ["f"], "due": ["timeout:f"]}
    assert await driver.claim() == ["f"]
    assert driver.held["f"][0].body == '{"run":2}'
    await driver.end("completed", "f")
    assert await lists(driver) == {"completed": ["f"]}
    record = await driver.shard.record("f")
    assert (record["tree"], record["on"], record["run"]) == ("1", "wake", "2")


async def test_an_open_one_does_not_run_again(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way)
    given: dict[str, Any] = {"call": "c", "body": "{}", "timeout_ms": "", "deadline": 1e12, "now": START}
    assert await driver.shard.store.trees.restart("f", run=1, **given) == "open"


# what is wrong in the server


async def test_one_whose_queue_is_somebody_elses_is_refused_and_leaves_nothing(driver: TreeDriver) -> None:
    ready = driver.shard.key("ready", ROOTS)
    await driver.shard.command("SET", ready, "x")
    unusual: dict[str, Any] = {"key": "k", "print": "p", "body": _LARGE}
    for given in ({}, unusual):
        verdict = await add_root(driver, "alone", timeout=5.0, **given)
        assert (verdict.word, verdict.text) == ("foreign", ready)
        await driver.shard.command("DEL", ready)
        assert await driver.keys() == []
        await driver.shard.command("SET", ready, "x")


@pytest.mark.parametrize("kind", ["roots", "rooted"])
async def test_a_list_of_roots_that_is_somebody_elses_is_left_alone(driver: TreeDriver, kind: str) -> None:
    name = driver.shard.key(kind, ROOTS) if kind == "roots" else driver.shard.shard_key(kind)
    await driver.shard.command("SET", name, "x")
    await add_root(driver, "alone", timeout=5.0)
    assert await driver.run() == ["f"]
    assert await driver.outcome("f") == ("completed", "1")
    assert await driver.shard.command("GET", name) == "x"


async def test_a_record_that_is_cut_off_is_set_apart(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way, timeout=60.0)
    await driver.shard.cut("f", 12)
    assert await driver.claim() == []
    assert await lists(driver) == {"failed": ["f"]}
    assert (await driver.outcome("f"))[0] == "failed"


async def test_a_queue_with_groups_gives_a_root_no_jobs_for_them(driver: TreeDriver, way: Way) -> None:
    await driver.shard.announce(queue=ROOTS, group="g")
    await add_root(driver, way)
    assert await driver.run() == ["f"]
    assert await driver.shard.members("ready", f"{ROOTS}@g") == []


async def test_emissions_and_roots_of_one_call(shard: Shard) -> None:
    queues = [AddQueue(ROOTS, 1, ""), AddQueue(ROOTS, 1, "", 1)]
    for number, priority in enumerate((0, 1)):
        rows = AddRows([row(f"a{number}")])
        tree = make_tree({}, root=f"f{number}", timeout=5.0, priority=priority)
        rows.put_root(row_of(tree)._replace(queue=2), tree.timeout_ms)
        await shard.store.add("em", queues, rows, deadline=1e12, now=shard.now)
    driver = TreeDriver(shard, repeats=False)
    assert await shard.members("roots", ROOTS) == ["f0", "f1"]
    assert await shard.members("due", "") == ["timeout:f0", "timeout:f1"]
    assert ["tree" in await shard.record(each) for each in ("a0", "f0", "a1", "f1")] == [
        False,
        True,
        False,
        True,
    ]
    assert await driver.run() == ["a0", "f0", "a1", "f1"]
    assert await shard.members("roots", ROOTS) == []
