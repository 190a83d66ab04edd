"""Members are kept as long as their root and removed with it; nothing of the tree is left."""

from __future__ import annotations

import pytest
from drivers.shards import turn_queue
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree

from eventbus.emit.job_tree import Member
from eventbus.store.scripting.script_rows import SaveRow, SweepQueue

_DAY = 86_400_000
_LARGE = '"' + "x" * 500 + '"'
_SWEPT = [SweepQueue(name, 0, 1000, 0, 1000) for name in (ROOTS, STEPS)]
_STRICT = [
    turn_queue(name, keep_completed=0, age_completed=0, keep_failed=0, age_failed=0)
    for name in (ROOTS, STEPS)
]


async def _grow(driver: TreeDriver, end: str) -> None:
    """A tree with everything that a tree may have: nested, saved, logged, large."""
    names = {"a": "", "b": "a", "p": "", "z": "b p"}
    await driver.add(make_tree(names, body=_LARGE, timeout=3600.0, key="k", print="p"), 2)
    assert sorted(await driver.claim()) == ["f/a", "f/p"]
    await driver.checkpoint("f/a", saves=[SaveRow("x", _LARGE)])
    await driver.end("delayed", "f/a", text=_LARGE, attempts=1)
    await driver.claim()
    await driver.shard.note("f/a", driver.held["f/a"][1], "1")
    await driver.spawn("f/p", Member("n", ROOTS, body=_LARGE, is_root=True, timeout=60.0, on="wake"))
    await driver.claim()
    await driver.spawn("n", Member("n/x", STEPS), tree="n", saves=[SaveRow("x", "y")])
    await driver.claim()
    await driver.end("completed", "n/x", text=_LARGE)
    await driver.end(end, "f/a", text=_LARGE)
    for _ in range(8):
        for job in await driver.claim():
            await driver.checkpoint(job, acknowledges=True)
            await driver.end("failed" if driver.held[job][0].stop else "completed", job, text=_LARGE)
    assert (await driver.states())["f"] == end


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_members_are_kept_while_their_root_is_and_go_with_it(driver: TreeDriver, end: str) -> None:
    await _grow(driver, end)
    driver.shard.now += 130_000
    before = await driver.keys()
    assert (
        await driver.shard.sweep(
            *[
                each._replace(keep_completed=10, keep_failed=10, age_completed=_DAY, age_failed=_DAY)
                for each in _SWEPT
            ]
        )
        == 0
    )
    assert await driver.keys() == before
    assert await driver.shard.sweep(*_SWEPT) == 1
    pointer = [f"key:{ROOTS}:k"]
    assert await driver.keys() == pointer
    assert await driver.states() == {"f": "unknown"}


async def _remove(driver: TreeDriver, root: str, call: str = "") -> str:
    states = ("completed", "failed", "cancelled", "root")
    (word,) = await driver.shard.store.controls.retrials.remove(
        [root], states=states, text="{}", key_ttl_ms=_DAY, call=call, now=driver.shard.now
    )
    return word


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_a_tree_that_has_ended_is_removed_by_its_root_with_all_its_members(
    driver: TreeDriver, end: str
) -> None:
    await _grow(driver, end)
    assert [await _remove(driver, member) for member in ("n", "f/a", "none")] == [
        *("member", "member", "unknown")
    ]
    assert await _remove(driver, "f", "c") == "removed"
    assert [await _remove(driver, "f", call) for call in ("c", "d")] == ["removed", "unknown"]
    assert (await driver.shard.members(end, ROOTS), await driver.shard.members("leaving", ROOTS)) == (
        [],
        ["f"],
    )
    (outcome,) = await driver.shard.store.look("em", ["f"], join=False)
    assert outcome.state == end, "who awaits it finds how it ended"
    assert await driver.states() == {"f": "unknown"}, "and nobody else finds it"
    trees = driver.shard.store.trees
    assert await trees.restart("f", call="r", run=1, body="{}", now=driver.shard.now) == "unknown"
    driver.shard.now += 240_001
    await driver.turn(want=0)
    await driver.do_chores()
    assert await driver.keys() == [f"key:{ROOTS}:k"]
    assert await driver.states() == {"f": "unknown"}


async def test_a_tree_that_is_open_is_not_removed(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": ""}))
    assert await _remove(driver, "f") == "waiting-children"
    await driver.claim()
    await driver.end("failed", "f/a", text="{}")
    assert await _remove(driver, "f") == "waiting"
    assert await driver.claim() == ["f"]
    assert await _remove(driver, "f") == "active"
    await driver.checkpoint("f", acknowledges=True)
    await driver.end("failed", "f", text="{}")
    assert await _remove(driver, "f") == "removed"


async def test_members_of_an_open_tree_are_never_removed(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.run()
    driver.shard.now += 30 * _DAY
    assert await driver.shard.sweep(*_SWEPT) == 0
    await driver.turn(want=0, queues=_STRICT)
    assert (await driver.states())["a"] == "completed"
    assert await driver.run_all() == ["f/b", "f"]


async def test_a_turn_that_ends_a_root_removes_older_trees(driver: TreeDriver) -> None:
    for root in ("f", "g"):
        await driver.add(make_tree({"a": ""}, root=root))
        await driver.claim()
        await driver.end("completed", f"{root}/a", queues=_STRICT)
        await driver.claim()
        driver.shard.now += 200_000
        driver.shard.now -= (driver.shard.now + 1) % 8  # the time decides when retention looks
        await driver.end("completed", root, queues=_STRICT)
    assert not [each for each in await driver.keys() if each.partition(":")[2] in ("f", "f/a")]
    assert (await driver.states("g"))["a"] == "completed"


async def test_a_large_tree_is_removed_in_steps_with_nothing_left(driver: TreeDriver) -> None:
    names = [f"m{i}" for i in range(700)]
    await driver.add(make_tree({"a": "", **dict.fromkeys(names, "a")}), 200)
    for _ in range(4):  # each turn notifies some dependents of ended jobs, and these can then run
        await driver.run_all()
        await driver.do_chores()
    assert (await driver.states())["f"] == "completed"
    driver.shard.now += 130_000
    assert await driver.shard.sweep(*_SWEPT) == 1
    left = [each for each in await driver.keys() if each.startswith("job:")]
    assert len(left) == 701 - 200
    assert await driver.do_chores() >= 2
    assert await driver.keys() == []
    assert await driver.shard.members("due", "") == []


async def test_nested_trees_are_removed_in_steps_too(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": ""}))
    await driver.claim()
    nests = [Member(f"n{i}", ROOTS, body="{}", is_root=True) for i in range(3)]
    await driver.spawn("f/a", *nests)
    for each in await driver.claim():
        await driver.spawn(each, *[Member(f"{each}/m{i}", STEPS) for i in range(150)], tree=each)
    await driver.run_all()
    await driver.do_chores()
    await driver.run_all()
    assert (await driver.states())["f"] == "completed"
    driver.shard.now += 130_000
    await driver.shard.sweep(*_SWEPT)
    await driver.do_chores()
    assert await driver.keys() == []
