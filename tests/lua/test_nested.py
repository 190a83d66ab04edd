"""Trees within trees: a member of one is the root of another; they stop with, before and without each other."""

from __future__ import annotations

from typing import Any

import pytest
from groves import ROOTS, STEPS, TIMEOUT, Grove, make_tree
from shards import LEASE, turn_queue

from eventbus.tree import Member

_CAUSES = ["failed", "cancelled", "timeout"]
_MANY = [f"m{i}" for i in range(350)]


async def _nest(grove: Grove, **given: Any) -> None:
    """`f/a` runs a nested tree `n` of `n/x`, `n/y` (after `n/x`), and waits for it."""
    await grove.add(make_tree({"bad": "", "a": "", "b": "a"}, timeout=TIMEOUT))
    assert await grove.claim() == ["f/bad", "f/a"]
    nested = Member("n", ROOTS, body='{"n":1}', is_root=True, on="wake", **given)
    assert await grove.spawn("f/a", nested) == "waiting"
    assert await grove.claim() == ["n"]
    steps = (Member("n/x", STEPS), Member("n/y", STEPS, needs=["n/x"]))
    assert await grove.spawn("n", *steps, tree="n") == "waiting"
    assert await grove.claim() == ["n/x"]


@pytest.mark.parametrize("cause", _CAUSES)
async def test_a_nested_tree_stops_with_the_outer_one_and_is_undone_before_it(
    grove: Grove, cause: str
) -> None:
    await _nest(grove)
    await grove.stop(cause)
    await grove.end_bad(cause)
    assert (await grove.states("n"))["y"] == "cancelled"
    assert await grove.claim() == []
    await grove.end("completed", "n/x")
    await grove.undo("n", cause="cancelled")
    assert await grove.outcome("n") == ("cancelled", '{"message":"undone"}')
    assert (await grove.states()) == {
        "f": "waiting", "bad": "failed" if cause == "failed" else "cancelled",
        "a": "cancelled", "b": "cancelled", "n": "cancelled",
    }  # fmt: skip
    await grove.undo(cause=cause)


async def test_a_nested_tree_that_fails_stops_the_outer_one(grove: Grove) -> None:
    await _nest(grove)
    await grove.end("failed", "n/x", text='{"message":"deep"}')
    await grove.undo("n")
    page = await grove.look()
    assert (page.root["stop"], page.root["stopper"]) == ("failed", "n")
    assert "undone" in page.root["text"]
    assert await grove.shard.state("f/a") == "cancelled"
    await grove.end("completed", "f/bad")
    await grove.undo()
    assert await grove.done() == ["bad"]


async def test_a_nested_tree_that_completes_lets_its_parent_run_again(grove: Grove) -> None:
    await _nest(grove)
    await grove.end("completed", "f/bad", "n/x")
    assert await grove.run() == ["n/y"]
    assert await grove.run() == ["n"]
    assert await grove.run_all() == ["f/a", "f/b", "f"]
    assert await grove.done() == ["bad", "n", "a", "b"]
    assert await grove.done("n") == ["x", "y"]


async def test_a_nested_tree_may_be_cancelled_alone(grove: Grove) -> None:
    await _nest(grove)
    assert await grove.cancel("n") == "asked"
    await grove.end("cancelled", "n/x", text="{}")
    await grove.undo("n", cause="cancelled")
    assert (await grove.look()).root["stop"] == "failed"
    await grove.end("completed", "f/bad")
    await grove.undo()


async def test_a_nested_root_that_a_claim_meets_before_the_sweep_is_undone(grove: Grove) -> None:
    await grove.add(make_tree(dict.fromkeys(["bad", "a", *_MANY], "")))
    await grove.claim(want=2)
    await grove.spawn("f/a", Member("n", ROOTS, body="{}", is_root=True, on="wake"))  # the last member of all
    roots = (turn_queue(ROOTS),)
    assert [each.id for each in (await grove.turn(queues=roots)).claims] == ["n"]
    await grove.spawn("n", Member("n/x", "other"), tree="n")
    other = (turn_queue("other"),)
    assert [each.id for each in (await grove.turn(queues=other)).claims] == ["n/x"]
    await grove.end("completed", "n/x", queues=other)
    assert await grove.shard.state("n") == "waiting"
    answer = await grove.end("failed", "f/bad", text="{}", want=10, queues=roots)
    assert answer.claims == []
    assert await grove.shard.state("n") == "waiting-children"
    await grove.do_chores()
    await grove.undo("n", cause="cancelled")
    assert await grove.done("n") == ["x"]
    await grove.undo()


async def test_a_rescue_that_stops_a_tree_lets_the_nested_ones_that_it_rescues_wait_too(grove: Grove) -> None:
    await grove.add(make_tree({"a": ""}))
    await grove.claim()
    await grove.spawn("f/a", Member("n1", ROOTS, body="{}", is_root=True, on="wake"))
    await grove.claim()
    await grove.spawn("n1", Member("n2", ROOTS, body="{}", is_root=True, on="wake"), tree="n1", waits=False)
    await grove.claim()
    await grove.spawn("n2", Member("n2/x", STEPS), tree="n2", waits=False)
    grove.shard.now += LEASE // 2
    assert await grove.claim(worker="x") == ["n2/x"]
    grove.shard.now += LEASE // 2
    await grove.shard.rescue(max_stalls=0)
    assert [f"{each.id} {each.verdict}" for each in grove.shard.stalls] == ["n1 rescued", "n2 rescued"]
    assert [await grove.shard.state(each) for each in ("n1", "n2")] == ["waiting-children"] * 2
    assert await grove.claim() == []
    await grove.end("completed", "n2/x", worker="x")
    await grove.undo("n2", cause="cancelled")
    await grove.undo("n1")
    await grove.undo()
