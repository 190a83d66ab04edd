"""Jobs that wait: a tree in which one runs, and what is left of its waits."""

from __future__ import annotations

from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree

from eventbus.emit.job_tree import Member, Policy
from eventbus.store.scripting.script_rows import MemberRow, SweepQueue

__all__ = ["begin_step", "child", "finish_all", "left_of", "wakes_of"]


def child(name: str, up: Policy = "ignore") -> Member:
    return Member(f"f/{name}", STEPS, up=up)


async def begin_step(driver: TreeDriver) -> TreeDriver:
    """Begin a tree in which `f/a` runs and has the children `c` and `d`, which another worker runs."""
    await driver.add(make_tree({"a": "", "b": "a"}))
    assert await driver.claim() == ["f/a"]
    rows = [MemberRow(f"f/{name}", "f", STEPS, "", 0, "", "", "ignore", "", "") for name in "cd"]
    assert await driver.checkpoint("f/a", rows=rows, opens=True) == "ok"
    assert await driver.claim(worker="x") == ["f/c", "f/d"]
    return driver


async def wakes_of(driver: TreeDriver) -> list[str]:
    """Return the times of waits that stand in `due`."""
    return [each for each in await driver.shard.members("due", "") if each.startswith("wake:")]


async def left_of(driver: TreeDriver) -> list[str]:
    """Return what is left of the waits of `f/a`."""
    left = [each for each in await driver.keys() if each.startswith(("needs:f/a", "leaves"))]
    fields = await driver.shard.record("f/a")
    return [*left, *await wakes_of(driver), *(fields.keys() & {"wakes", "listens", "gathers"})]


async def finish_all(driver: TreeDriver) -> None:
    """Run all to the end, and see that nothing is left."""
    await driver.run_all()
    driver.shard.now += 8 * 86_400_000
    await driver.turn(want=0)
    queues = [SweepQueue(each, 0, 0, 0, 0) for each in (ROOTS, STEPS)]
    await driver.shard.sweep(*queues)
    assert await driver.keys() == []
