"""Nested trees: a member of one tree is the root of another; they stop together, one first, or one alone."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import LEASE, turn_queue
from drivers.tree_driver import ROOTS, STEPS, TIMEOUT, TreeDriver, make_tree

from eventbus.emit.job_tree import Member

_CAUSES = ["failed", "cancelled", "timeout"]
_MANY = [f"m{i}" for i in range(350)]


async def _nest(driver: TreeDriver, **given: Any) -> None:
    """`f/a` runs a nested tree `n` of `n/x`, `n/y` (after `n/x`), and waits for it."""
    await driver.add(make_tree({"bad": "", "a": "", "b": "a"}, timeout=TIMEOUT))
    assert await driver.claim() == ["f/bad", "f/a"]
    nested = Member("n", ROOTS, body='{"n":1}', is_root=True, on="wake", **given)
    assert await driver.spawn("f/a", nested) == "waiting"
    assert await driver.claim() == ["n"]
    steps = (Member("n/x", STEPS), Member("n/y", STEPS, needs=["n/x"]))
    assert await driver.spawn("n", *steps, tree="n") == "waiting"
    assert await driver.claim() == ["n/x"]


@pytest.mark.parametrize("cause", _CAUSES)
async def test_a_nested_tree_stops_with_the_outer_one_and_is_undone_before_it(
    driver: TreeDriver, cause: str
) -> None:
    await _nest(driver)
    await driver.stop(cause)
    await driver.end_bad(cause)
    assert (await driver.states("n"))["y"] == "cancelled"
    assert await driver.claim() == []
    await driver.end("completed", "n/x")
    await driver.undo("n", cause="cancelled")
    assert await driver.outcome("n") == ("cancelled", '{"message":"undone"}')
    assert (await driver.states()) == {
        "f": "waiting", "bad": "failed" if cause == "failed" else "cancelled",
        "a": "cancelled", "b": "cancelled", "n": "cancelled",
    }  # fmt: skip
    await driver.undo(cause=cause)


async def test_a_nested_tree_that_fails_stops_the_outer_one(driver: TreeDriver) -> None:
    await _nest(driver)
    await driver.end("failed", "n/x", text='{"message":"deep"}')
    await driver.undo("n")
    page = await driver.look()
    assert (page.root["stop"], page.root["stopper"]) == ("failed", "n")
    assert "undone" in page.root["text"]
    assert await driver.shard.state("f/a") == "cancelled"
    await driver.end("completed", "f/bad")
    await driver.undo()
    assert await driver.done() == ["bad"]


async def test_a_nested_tree_that_completes_lets_its_parent_run_again(driver: TreeDriver) -> None:
    await _nest(driver)
    await driver.end("completed", "f/bad", "n/x")
    assert await driver.run() == ["n/y"]
    assert await driver.run() == ["n"]
    assert await driver.run_all() == ["f/a", "f/b", "f"]
    assert await driver.done() == ["bad", "n", "a", "b"]
    assert await driver.done("n") == ["x", "y"]


async def test_a_nested_tree_may_be_cancelled_alone(driver: TreeDriver) -> None:
    await _nest(driver)
    assert await driver.cancel("n") == "asked"
    await driver.end("cancelled", "n/x", text="{}")
    await driver.undo("n", cause="cancelled")
    assert (await driver.look()).root["stop"] == "failed"
    await driver.end("completed", "f/bad")
    await driver.undo()


async def test_a_nested_root_that_a_claim_meets_before_the_sweep_is_undone(driver: TreeDriver) -> None:
    await driver.add(make_tree(dict.fromkeys(["bad", "a", *_MANY], "")))
    await driver.claim(want=2)
    await driver.spawn(
        "f/a", Member("n", ROOTS, body="{}", is_root=True, on="wake")
    )  # the last member of all
    roots = (turn_queue(ROOTS),)
    assert [each.id for each in (await driver.turn(queues=roots)).claims] == ["n"]
    await driver.spawn("n", Member("n/x", "other"), tree="n")
    other = (turn_queue("other"),)
    assert [each.id for each in (await driver.turn(queues=other)).claims] == ["n/x"]
    await driver.end("completed", "n/x", queues=other)
    assert await driver.shard.state("n") == "waiting"
    answer = await driver.end("failed", "f/bad", text="{}", want=10, queues=roots)
    assert answer.claims == []
    assert await driver.shard.state("n") == "waiting-children"
    await driver.do_chores()
    await driver.undo("n", cause="cancelled")
    assert await driver.done("n") == ["x"]
    await driver.undo()


async def test_a_rescue_that_stops_a_tree_lets_the_nested_ones_that_it_rescues_wait_too(
    driver: TreeDriver,
) -> None:
    await driver.add(make_tree({"a": ""}))
    await driver.claim()
    await driver.spawn("f/a", Member("n1", ROOTS, body="{}", is_root=True, on="wake"))
    await driver.claim()
    await driver.spawn("n1", Member("n2", ROOTS, body="{}", is_root=True, on="wake"), tree="n1", waits=False)
    await driver.claim()
    await driver.spawn("n2", Member("n2/x", STEPS), tree="n2", waits=False)
    driver.shard.now += LEASE // 2
    assert await driver.claim(worker="x") == ["n2/x"]
    driver.shard.now += LEASE // 2
    await driver.shard.rescue(max_stalls=0)
    assert [f"{each.id} {each.verdict}" for each in driver.shard.stalls] == ["n1 rescued", "n2 rescued"]
    assert [await driver.shard.state(each) for each in ("n1", "n2")] == ["waiting-children"] * 2
    assert await driver.claim() == []
    await driver.end("completed", "n2/x", worker="x")
    await driver.undo("n2", cause="cancelled")
    await driver.undo("n1")
    await driver.undo()
