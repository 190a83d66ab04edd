"""What becomes of a job when one that it needs does not complete: fail, ignore, remove, wake; overridden; up the tree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from groves import ROOTS, STEPS, Grove, make_tree
from shards import settle

from eventbus.tree import Member

_BAD = '{"message":"boom"}'


async def _fail(grove: Grove, job: str, state: str = "failed") -> None:
    await grove.end(state, job, text=_BAD)


async def _plant(grove: Grove, **given: Any) -> None:
    """`a` fails; `b` needs it and `x`; `c` needs `b`; the root needs `c`. Nobody undoes anything."""
    given.setdefault("on", "fail")
    await grove.add(make_tree({"a": "", "x": "", "b": "a x", "c": "b"}, **given), reply=True)
    assert await grove.claim() == ["f/a", "f/x"]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_fail_goes_up_the_whole_tree(grove: Grove, state: str) -> None:
    await grove.shard.open_replies()
    await _plant(grove)
    await _fail(grove, "f/a", state)
    assert await grove.states() == {
        "f": "waiting-children",
        "a": state,
        "x": "active",
        "b": "failed",
        "c": "failed",
    }
    await grove.end("completed", "f/x")  # who runs is waited for
    assert await grove.done() == ["x"]
    ended, text = await grove.outcome("f")
    verb = "failed" if state == "failed" else "was cancelled"
    assert (ended, json.loads(text)["type"]) == ("failed", "ChildFailed")
    assert json.loads(text)["message"] == (f"child f/c failed: child f/b failed: child f/a {verb}: boom")
    assert await grove.shard.replies() == [[("f", "failed", 1, text)]]
    assert await grove.claim() == []


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_ignore_takes_a_failure_as_an_end(grove: Grove, where: str) -> None:
    await _plant(grove, **({"ons": {"b": "ignore"}} if where == "its own" else {"ups": {"a": "ignore"}}))
    await _fail(grove, "f/a")
    assert await grove.claim() == []
    await grove.end("completed", "f/x")
    assert await grove.run_all() == ["f/b", "f/c", "f"]
    assert await grove.done() == ["x", "b", "c"]


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_wake_runs_the_job_at_once(grove: Grove, where: str) -> None:
    await _plant(grove, **({"ons": {"b": "wake"}} if where == "its own" else {"ups": {"a": "wake"}}))
    await _fail(grove, "f/a")
    assert await grove.claim() == ["f/b"]
    await grove.end("completed", "f/b", "f/x")
    assert await grove.run_all() == ["f/c", "f"]


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_remove_takes_the_job_away_and_goes_on_up(grove: Grove, where: str) -> None:
    await _plant(grove, **({"ons": {"b": "remove"}} if where == "its own" else {"ups": {"a": "remove"}}))
    await _fail(grove, "f/a")
    states = await grove.states()
    assert (states["b"], states["c"]) == ("unknown", "failed")
    assert not [each for each in await grove.keys() if each.partition(":")[2] == "f/b"]
    await grove.end("completed", "f/x")
    text = json.loads((await grove.outcome("f"))[1])["message"]
    assert "child f/b was cancelled: child f/a failed: boom" in text


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_a_root_that_is_removed_ends_cancelled_and_nothing_of_it_is_left(
    grove: Grove, where: str
) -> None:
    await grove.shard.open_replies()
    given: dict[str, Any] = {"on": "remove"} if where == "its own" else {"on": "fail", "ups": {"a": "remove"}}
    await grove.add(make_tree({"a": "", "x": ""}, **given), reply=True)
    await grove.claim()
    await _fail(grove, "f/a")
    assert (await grove.states())["f"] == "waiting-children"
    await grove.end("completed", "f/x")
    ((told,),) = await grove.shard.replies()
    assert told[:2] == ("f", "cancelled")
    assert [each for each in await grove.keys() if not each.startswith("replies")] == []


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_a_root_with_wake_undoes_its_tree(grove: Grove, where: str) -> None:
    await _plant(grove, **({"on": "wake"} if where == "its own" else {"ups": {"c": "wake"}}))
    await _fail(grove, "f/a")
    if where == "its own":
        assert (await grove.states())["b"] == "cancelled"
    await grove.end("completed", "f/x")
    await grove.undo()


async def test_a_child_may_say_fail_where_its_parent_ignores(grove: Grove) -> None:
    await _plant(grove, ons={"b": "ignore"}, ups={"a": "fail"})
    await _fail(grove, "f/a")
    assert (await grove.states())["b"] == "failed"
    await grove.end("completed", "f/x")
    assert (await grove.states())["f"] == "failed"


async def test_an_ignored_failure_in_a_tree_with_wake_does_not_stop_it(grove: Grove) -> None:
    await _plant(grove, on="wake", ups={"a": "ignore"})
    await _fail(grove, "f/a")
    await grove.end("completed", "f/x")
    assert await grove.run_all() == ["f/b", "f/c", "f"]


# children that are added while their parent runs


async def _spawn(grove: Grove, **given: Any) -> None:
    """`f/p` runs, and has a child `f/k` that it does not wait for yet."""
    on = given.pop("on", "")
    await grove.add(make_tree({"p": "", "z": "p"}, on=given.pop("root", "fail"), ons={"p": on}))
    await grove.claim()
    await grove.spawn("f/p", Member("f/k", STEPS, **given), waits=False)
    assert await grove.claim(worker="x") == ["f/k"]


@pytest.mark.parametrize("policy", ["fail", "ignore", "remove", "wake"])
@pytest.mark.parametrize("is_waiting", [True, False])
async def test_a_child_that_fails_before_the_wait_counts_as_one_that_fails_after(
    grove: Grove, policy: str, is_waiting: bool
) -> None:
    await _spawn(grove, on=policy)
    if is_waiting:
        assert await grove.checkpoint("f/p", waits=True) == "waiting"
    await _fail(grove, "f/k")
    if not is_waiting:
        assert await grove.shard.state("f/p") == "active"
        assert await grove.checkpoint("f/p", waits=True) == "waiting"
    if policy in ("ignore", "wake"):
        assert await grove.run_all() == ["f/p", "f/z", "f"]
    else:
        assert await grove.shard.state("f/p") == ("failed" if policy == "fail" else None)
        assert (await grove.states())["f"] == "failed"
        assert await grove.claim() == []


async def test_a_child_that_fails_while_its_parent_completes_changes_nothing(grove: Grove) -> None:
    await _spawn(grove)
    await _fail(grove, "f/k")
    await grove.end("completed", "f/p")
    assert await grove.run_all() == ["f/z", "f"]


async def test_a_child_that_fails_while_its_parent_runs_stops_a_tree_with_wake(grove: Grove) -> None:
    await _spawn(grove, root="wake")
    await _fail(grove, "f/k")
    assert await grove.checkpoint("f/p", waits=True) == "stopping"
    await grove.end("completed", "f/p")
    assert (await grove.look()).root["stopper"] == "f/k"
    await grove.undo()


async def test_a_job_that_was_woken_may_wait_for_others(grove: Grove) -> None:
    await _spawn(grove, on="wake")
    await _fail(grove, "f/k")
    await grove.checkpoint("f/p", waits=True)
    assert await grove.claim() == ["f/p"]
    assert await grove.spawn("f/p", Member("f/l", STEPS)) == "waiting"
    assert await grove.run_all() == ["f/l", "f/p", "f/z", "f"]


async def test_who_waits_hears_of_an_end_that_a_wait_brings(grove: Grove) -> None:
    await grove.shard.open_replies()
    await grove.add(make_tree({"p": ""}, on="fail"), reply=True)
    await grove.claim()
    await grove.spawn("f/p", Member("f/k", STEPS), waits=False)
    await grove.claim(worker="x")
    await _fail(grove, "f/k")
    await grove.checkpoint("f/p", waits=True)
    ((told,),) = await grove.shard.replies()
    assert told[:2] == ("f", "failed")
    assert await grove.shard.members("failed", ROOTS) == ["f"]


async def test_a_job_that_one_child_woke_needs_the_others_no_more(grove: Grove) -> None:
    await grove.add(make_tree({"a": "", "b": "", "d": "a b"}, on="fail", ups={"a": "wake"}))
    await grove.claim()
    rows = [settle(*grove.held[each], "failed", _BAD) for each in ("f/a", "f/b")]
    assert [each.id for each in (await grove.turn(*rows)).claims] == ["f/d"]
    await grove.end("completed", "f/d")
    assert await grove.run_all() == ["f"]
