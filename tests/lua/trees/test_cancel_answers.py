"""The answer to a cancel agrees with what becomes of the job: members, roots, other stops, repeats,
stalls.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from drivers.shards import Shard, row
from drivers.tree_driver import TIMEOUT, TreeDriver, make_tree

from eventbus.emit.job_tree import Member

_LATER = '{"type":"JobCancelled","message":"later"}'


async def _plant(driver: TreeDriver) -> None:
    """A tree with two members that run, and one that waits for them."""
    await driver.add(make_tree({"bad": "", "slow": "", "next": "slow bad"}, timeout=TIMEOUT))
    assert len(await driver.claim()) == 2


async def _fail(driver: TreeDriver) -> None:
    """Its stop is gentle: `f/slow` goes on."""
    await driver.end("failed", "f/bad", text='{"message":"boom"}')


@pytest.mark.parametrize("cause", ["failed", "timeout"])
async def test_a_cancel_of_a_tree_that_stops_says_no_and_changes_no_outcome(
    driver: TreeDriver, cause: str
) -> None:
    await _plant(driver)
    await driver.stop(cause)
    for _ in range(2):
        assert await driver.shard.cancel("f", call="late") == ["over"]
    await driver.end_bad(cause)
    await driver.end("cancelled", "f/slow", text="{}")
    await driver.undo(cause=cause)
    assert (await driver.outcome("f"))[0] == ("failed" if cause == "failed" else "cancelled")
    assert await driver.shard.cancel("f", call="late") == ["over"]


async def test_a_cancel_of_a_tree_that_stops_gently_still_hurries_what_runs(driver: TreeDriver) -> None:
    await _plant(driver)
    token = driver.held["f/slow"][1]
    await _fail(driver)
    assert await driver.shard.members("control", "w") == []
    assert await driver.cancel() == "over"
    assert await driver.shard.members("control", "w") == ["cancel:f/slow"]
    await driver.shard.renew(("f/slow", token))
    assert driver.shard.cancelled == ["f/slow"]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "delayed", "waiting", "parked"])
@pytest.mark.parametrize("stops", [False, True])
async def test_a_running_member_that_is_cancelled_by_itself_ends_so_whatever_it_says(
    driver: TreeDriver, state: str, stops: bool
) -> None:
    await _plant(driver)
    assert await driver.shard.cancel("f/slow", call="c") == ["asked"]
    if stops:
        await _fail(driver)
    assert await driver.shard.cancel("f/slow", call="c") == ["asked"]
    await driver.end(state, "f/slow", text='{"r":7}', attempts=1, delay=5)
    found, text = await driver.outcome("f/slow")
    assert found == "cancelled"
    assert json.loads(text).get("kept") == ('{"r":7}' if state == "completed" else None)
    assert await driver.shard.cancel("f/slow", call="c") == ["ended"]
    members = {each.id: each for each in (await driver.look()).members}
    assert members["f/slow"].stalls == (1 if state == "waiting" else 0)
    if not stops:
        assert (await driver.look()).root["stopper"] == "f/slow"
        await driver.end("completed", "f/bad")
    await driver.undo()


async def test_an_attempt_that_fails_in_a_cancelled_tree_counts_and_one_that_was_cancelled_by_itself_does_not(
    driver: TreeDriver,
) -> None:
    await _plant(driver)
    assert await driver.shard.cancel("f/slow", call="c") == ["asked"]
    assert await driver.cancel() == "asked"
    await driver.end("failed", "f/slow", "f/bad", text="{}", attempts=1)
    members = {each.id: (each.state, each.attempts) for each in (await driver.look()).members}
    assert members["f/slow"] == ("cancelled", 0)
    assert members["f/bad"] == ("failed", 1)


@pytest.mark.parametrize("stops", [False, True])
async def test_rescue_ends_a_member_that_was_cancelled_by_itself_as_cancelled(
    driver: TreeDriver, stops: bool
) -> None:
    await _plant(driver)
    assert await driver.cancel("f/slow") == "asked"
    if stops:
        await _fail(driver)
    verdicts = await driver.lose()
    assert "f/slow cancelled" in verdicts
    assert {each.id: each.stalls for each in (await driver.look()).members}["f/slow"] == 1


@pytest.mark.parametrize("cause", ["failed", "cancelled", "timeout"])
async def test_a_member_that_runs_in_a_tree_that_stops_is_hurried_and_its_cancel_says_no(
    driver: TreeDriver, cause: str
) -> None:
    await _plant(driver)
    token = driver.held["f/slow"][1]
    await driver.stop(cause)
    for _ in range(2):
        assert await driver.shard.cancel("f/slow", call="c") == ["over"]
    await driver.shard.renew(("f/slow", token))
    assert driver.shard.cancelled == ["f/slow"]
    await driver.end("completed", "f/slow")
    assert await driver.outcome("f/slow") == ("completed", "1")
    assert await driver.done() == ["slow"]
    assert await driver.shard.cancel("f/slow", call="c") == ["over"]


async def test_who_cancelled_is_answered_so_again_whoever_else_asked_in_between(driver: TreeDriver) -> None:
    await _plant(driver)
    shard = driver.shard
    assert await shard.cancel("f", call="mine") == ["asked"]
    assert await shard.cancel("f", call="theirs", text=_LATER) == ["over"]
    assert await shard.cancel("f", call="mine") == ["asked"]
    for job in ("f/bad", "f/slow"):
        await driver.end("cancelled", job, text="{}")
    await driver.undo(cause="cancelled")
    assert await shard.cancel("f", call="mine") == ["ended"]
    assert await shard.cancel("f", call="theirs", text=_LATER) == ["over"]


async def test_a_plain_job_says_the_same_to_both_who_cancelled_it(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn()
    assert await shard.cancel("a", call="mine") == ["asked"]
    assert await shard.cancel("a", call="theirs", text=_LATER) == ["asked"]
    assert await shard.cancel("a", call="mine") == ["asked"]


async def test_a_cancelled_tree_whose_workers_die_undoing_it_ends_as_cancelled(driver: TreeDriver) -> None:
    await _plant(driver)
    assert await driver.shard.cancel("f", call="c", text='{"type":"JobCancelled","message":"enough"}') == [
        "asked"
    ]
    for job in ("f/bad", "f/slow"):
        await driver.end("cancelled", job, text="{}")
    for _ in range(3):
        assert await driver.claim() == ["f"]
        assert await driver.checkpoint("f", acknowledges=True) == "ok"
        assert await driver.lose(max_stalls=3) == ["f rescued"]
    assert await driver.claim() == ["f"]
    assert await driver.lose(max_stalls=3) == ["f cancelled"]
    state, text = await driver.outcome("f")
    assert (state, json.loads(text)) == (
        "cancelled",
        {"type": "JobCancelled", "message": "enough", "stalls": 4},
    )
    assert await driver.shard.cancel("f", call="c") == ["ended"]


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_a_cancelled_tree_ends_as_cancelled_whatever_its_root_says(
    driver: TreeDriver, state: str
) -> None:
    await _plant(driver)
    assert await driver.cancel() == "asked"
    for job in ("f/bad", "f/slow"):
        await driver.end("cancelled", job, text="{}")
    assert await driver.claim() == ["f"]
    assert await driver.checkpoint("f", acknowledges=True) == "ok"
    await driver.end(state, "f", text="{}")
    assert (await driver.outcome("f"))[0] == "cancelled"


@pytest.mark.parametrize("first", ["inner", "outer"])
async def test_a_nested_tree_says_yes_only_to_who_stopped_it(driver: TreeDriver, first: str) -> None:
    await driver.add(make_tree({"a": ""}))
    await driver.claim()
    inner: Any = Member("f/a/i", "flow", body="{}", is_root=True, on="wake", up="wake")
    assert await driver.spawn("f/a", inner) == "waiting"
    assert await driver.cancel("f" if first == "outer" else "f/a/i") == "asked"
    assert await driver.cancel("f/a/i") == "over"
    await driver.undo("f/a/i", cause="cancelled")
    assert (await driver.outcome("f/a/i"))[0] == "cancelled"
