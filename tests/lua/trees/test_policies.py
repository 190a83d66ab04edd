"""What becomes of a job when one that it needs does not complete: fail, ignore, remove, wake; overridden; up
the tree.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from drivers.shards import settle
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree

from eventbus.emit.job_tree import Member

_BAD = '{"message":"boom"}'


async def _fail(driver: TreeDriver, job: str, state: str = "failed") -> None:
    await driver.end(state, job, text=_BAD)


async def _plant(driver: TreeDriver, **given: Any) -> None:
    """`a` fails; `b` needs it and `x`; `c` needs `b`; the root needs `c`. Nobody undoes anything."""
    given.setdefault("on", "fail")
    await driver.add(make_tree({"a": "", "x": "", "b": "a x", "c": "b"}, **given), reply=True)
    assert await driver.claim() == ["f/a", "f/x"]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_fail_goes_up_the_whole_tree(driver: TreeDriver, state: str) -> None:
    await driver.shard.open_replies()
    await _plant(driver)
    await _fail(driver, "f/a", state)
    assert await driver.states() == {
        "f": "waiting-children",
        "a": state,
        "x": "active",
        "b": "failed",
        "c": "failed",
    }
    await driver.end("completed", "f/x")  # who runs is waited for
    assert await driver.done() == ["x"]
    ended, text = await driver.outcome("f")
    verb = "failed" if state == "failed" else "was cancelled"
    assert (ended, json.loads(text)["type"]) == ("failed", "ChildFailed")
    assert json.loads(text)["message"] == (f"child f/c failed: child f/b failed: child f/a {verb}: boom")
    assert await driver.shard.replies() == [[("f", "failed", 1, text)]]
    assert await driver.claim() == []


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_ignore_takes_a_failure_as_an_end(driver: TreeDriver, where: str) -> None:
    await _plant(driver, **({"ons": {"b": "ignore"}} if where == "its own" else {"ups": {"a": "ignore"}}))
    await _fail(driver, "f/a")
    assert await driver.claim() == []
    await driver.end("completed", "f/x")
    assert await driver.run_all() == ["f/b", "f/c", "f"]
    assert await driver.done() == ["x", "b", "c"]


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_wake_runs_the_job_at_once(driver: TreeDriver, where: str) -> None:
    await _plant(driver, **({"ons": {"b": "wake"}} if where == "its own" else {"ups": {"a": "wake"}}))
    await _fail(driver, "f/a")
    assert await driver.claim() == ["f/b"]
    await driver.end("completed", "f/b", "f/x")
    assert await driver.run_all() == ["f/c", "f"]


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_remove_takes_the_job_away_and_goes_on_up(driver: TreeDriver, where: str) -> None:
    await _plant(driver, **({"ons": {"b": "remove"}} if where == "its own" else {"ups": {"a": "remove"}}))
    await _fail(driver, "f/a")
    states = await driver.states()
    assert (states["b"], states["c"]) == ("unknown", "failed")
    assert not [each for each in await driver.keys() if each.partition(":")[2] == "f/b"]
    await driver.end("completed", "f/x")
    text = json.loads((await driver.outcome("f"))[1])["message"]
    assert "child f/b was cancelled: child f/a failed: boom" in text


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_a_root_that_is_removed_ends_cancelled_and_nothing_of_it_is_left(
    driver: TreeDriver, where: str
) -> None:
    await driver.shard.open_replies()
    given: dict[str, Any] = {"on": "remove"} if where == "its own" else {"on": "fail", "ups": {"a": "remove"}}
    await driver.add(make_tree({"a": "", "x": ""}, **given), reply=True)
    await driver.claim()
    await _fail(driver, "f/a")
    assert (await driver.states())["f"] == "waiting-children"
    await driver.end("completed", "f/x")
    ((told,),) = await driver.shard.replies()
    assert told[:2] == ("f", "cancelled")
    assert [each for each in await driver.keys() if not each.startswith("replies")] == []


@pytest.mark.parametrize("where", ["its own", "the child's"])
async def test_a_root_with_wake_undoes_its_tree(driver: TreeDriver, where: str) -> None:
    await _plant(driver, **({"on": "wake"} if where == "its own" else {"ups": {"c": "wake"}}))
    await _fail(driver, "f/a")
    if where == "its own":
        assert (await driver.states())["b"] == "cancelled"
    await driver.end("completed", "f/x")
    await driver.undo()


async def test_a_child_may_say_fail_where_its_parent_ignores(driver: TreeDriver) -> None:
    await _plant(driver, ons={"b": "ignore"}, ups={"a": "fail"})
    await _fail(driver, "f/a")
    assert (await driver.states())["b"] == "failed"
    await driver.end("completed", "f/x")
    assert (await driver.states())["f"] == "failed"


async def test_an_ignored_failure_in_a_tree_with_wake_does_not_stop_it(driver: TreeDriver) -> None:
    await _plant(driver, on="wake", ups={"a": "ignore"})
    await _fail(driver, "f/a")
    await driver.end("completed", "f/x")
    assert await driver.run_all() == ["f/b", "f/c", "f"]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_an_ignored_child_that_is_cancelled_while_it_runs_is_ignored_whatever_it_says(
    driver: TreeDriver, state: str
) -> None:
    await _plant(driver, on="wake", ups={"a": "ignore"})
    assert await driver.shard.cancel("f/a", call="c") == ["asked"]
    await driver.end(state, "f/a", text="{}")
    assert (await driver.states())["a"] == "cancelled"
    await driver.end("completed", "f/x")
    assert await driver.run_all() == ["f/b", "f/c", "f"]


# children that are added while their parent runs


async def _spawn(driver: TreeDriver, **given: Any) -> None:
    """`f/p` runs, and has a child `f/k` that it does not wait for yet."""
    on = given.pop("on", "")
    await driver.add(make_tree({"p": "", "z": "p"}, on=given.pop("root", "fail"), ons={"p": on}))
    await driver.claim()
    await driver.spawn("f/p", Member("f/k", STEPS, **given), waits=False)
    assert await driver.claim(worker="x") == ["f/k"]


@pytest.mark.parametrize("policy", ["fail", "ignore", "remove", "wake"])
@pytest.mark.parametrize("is_waiting", [True, False])
async def test_a_child_that_fails_before_the_wait_counts_as_one_that_fails_after(
    driver: TreeDriver, policy: str, is_waiting: bool
) -> None:
    await _spawn(driver, on=policy)
    if is_waiting:
        assert await driver.checkpoint("f/p", waits=True) == "waiting"
    await _fail(driver, "f/k")
    if not is_waiting:
        assert await driver.shard.state("f/p") == "active"
        assert await driver.checkpoint("f/p", waits=True) == "waiting"
    if policy in ("ignore", "wake"):
        assert await driver.run_all() == ["f/p", "f/z", "f"]
    else:
        assert await driver.shard.state("f/p") == ("failed" if policy == "fail" else None)
        assert (await driver.states())["f"] == "failed"
        assert await driver.claim() == []


async def test_a_child_that_fails_while_its_parent_completes_changes_nothing(driver: TreeDriver) -> None:
    await _spawn(driver)
    await _fail(driver, "f/k")
    await driver.end("completed", "f/p")
    assert await driver.run_all() == ["f/z", "f"]


async def test_a_child_that_fails_while_its_parent_runs_stops_a_tree_with_wake(driver: TreeDriver) -> None:
    await _spawn(driver, root="wake")
    await _fail(driver, "f/k")
    assert await driver.checkpoint("f/p", waits=True) == "stopping"
    await driver.end("completed", "f/p")
    assert (await driver.look()).root["stopper"] == "f/k"
    await driver.undo()


async def test_a_job_that_was_woken_may_wait_for_others(driver: TreeDriver) -> None:
    await _spawn(driver, on="wake")
    await _fail(driver, "f/k")
    await driver.checkpoint("f/p", waits=True)
    assert await driver.claim() == ["f/p"]
    assert await driver.spawn("f/p", Member("f/l", STEPS)) == "waiting"
    assert await driver.run_all() == ["f/l", "f/p", "f/z", "f"]


async def test_who_waits_hears_of_an_end_that_a_wait_brings(driver: TreeDriver) -> None:
    await driver.shard.open_replies()
    await driver.add(make_tree({"p": ""}, on="fail"), reply=True)
    await driver.claim()
    await driver.spawn("f/p", Member("f/k", STEPS), waits=False)
    await driver.claim(worker="x")
    await _fail(driver, "f/k")
    await driver.checkpoint("f/p", waits=True)
    ((told,),) = await driver.shard.replies()
    assert told[:2] == ("f", "failed")
    assert await driver.shard.members("failed", ROOTS) == ["f"]


async def test_a_job_that_one_child_woke_needs_the_others_no_more(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "", "d": "a b"}, on="fail", ups={"a": "wake"}))
    await driver.claim()
    rows = [settle(*driver.held[each], "failed", _BAD) for each in ("f/a", "f/b")]
    assert [each.id for each in (await driver.turn(*rows)).claims] == ["f/d"]
    await driver.end("completed", "f/d")
    assert await driver.run_all() == ["f"]
