"""Changes of trees: their members and roots are told like other jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from drivers.shards import Shard
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree
from drivers.watching.watchers import Watcher

from eventbus.emit.job_tree import Member


@pytest.fixture
async def watcher(shard: Shard) -> AsyncIterator[Watcher]:
    watcher = Watcher(shard, ROOTS, STEPS)
    yield watcher
    await watcher.aclose()


async def test_a_tree_is_told_from_its_first_job_to_its_root(
    shard: Shard, driver: TreeDriver, watcher: Watcher
) -> None:
    await watcher.begin()
    await driver.add(make_tree({"a": "", "b": "a"}))
    assert await driver.run_all() == ["f/a", "f/b", "f"]
    told = [each for each in await watcher.see() if each != "drained"]
    assert sorted(told[:3]) == ["added f waiting-children", "added f/a waiting", "added f/b waiting-children"]
    assert told[3:] == [
        "claimed f/a active", "completed f/a completed", "released f/b waiting",
        "claimed f/b active", "completed f/b completed", "released f waiting",
        "claimed f active", "completed f completed",
    ]  # fmt: skip


async def test_a_job_that_waits_for_children_is_suspended(
    shard: Shard, driver: TreeDriver, watcher: Watcher
) -> None:
    await driver.add(make_tree({"a": ""}))
    await driver.claim()
    await watcher.begin()
    assert await driver.spawn("f/a", Member("f/k", STEPS)) == "waiting"
    assert [each for each in await watcher.see() if each != "drained"] == [
        "added f/k waiting", "suspended f/a waiting-children",
    ]  # fmt: skip


async def test_a_tree_that_is_cancelled_tells_what_ends_with_it(
    shard: Shard, driver: TreeDriver, watcher: Watcher
) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await watcher.begin()
    await driver.cancel()
    told = await watcher.see()
    assert sorted(told) == ["cancelled f/a cancelled", "cancelled f/b cancelled", "released f waiting"]


async def test_a_tree_that_runs_again_is_added_again(shard: Shard, watcher: Watcher) -> None:
    driver = TreeDriver(shard, repeats=False)
    await driver.add(make_tree({"a": ""}))
    await driver.run_all()
    await watcher.begin()
    for _ in range(2):
        await shard.store.trees.restart("f", call="c", run=1, body="{}", now=shard.now)
    assert await watcher.see() == ["added f waiting"]


async def test_a_root_that_fails_while_its_child_runs_is_suspended_and_released_to_undo(
    shard: Shard, driver: TreeDriver, watcher: Watcher
) -> None:
    await driver.add(make_tree({}))
    assert await driver.claim() == ["f"]
    assert await driver.spawn("f", Member("f/k", STEPS), waits=False) == "ok"
    await driver.claim()
    await watcher.begin()
    await driver.end("failed", "f")
    await driver.end("completed", "f/k")
    told = [each for each in await watcher.see() if each != "drained"]
    assert told == ["suspended f waiting-children", "completed f/k completed", "released f waiting"]
