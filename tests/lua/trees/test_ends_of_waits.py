"""Waits of jobs that are cancelled, stopped, rescued or damaged, or run once more: nothing is left of
them.
"""

from __future__ import annotations

from typing import Any

import pytest
from drivers.tree_driver import TIMEOUT, TreeDriver, make_tree
from drivers.waits import begin_step, child, finish_all, left_of, wakes_of

from eventbus.emit.job_tree import spawn_calls
from eventbus.store.scripting.script_rows import Wait


@pytest.fixture
async def step(driver: TreeDriver) -> TreeDriver:
    return await begin_step(driver)


@pytest.mark.parametrize("state", ["waiting", "released"])
async def test_a_member_that_waits_is_cancelled(step: TreeDriver, state: str) -> None:
    await step.wait("f/a", "c", "d", delay=500, heard=0, first=True)
    if state == "released":
        await step.shard.signal("f/a")
    assert await step.cancel("f/a") == "ended"
    assert await wakes_of(step) == []
    assert not [each for each in await step.keys() if each.startswith("needs:f/a")]
    await step.end("completed", "f/c", "f/d", worker="x")
    await step.undo()
    await finish_all(step)


@pytest.mark.parametrize("cause", ["cancelled", "timeout"])
@pytest.mark.parametrize("on", ["wake", "fail"])
async def test_a_root_that_waits_is_stopped(driver: TreeDriver, cause: str, on: Any) -> None:
    await driver.add(make_tree({}, timeout=TIMEOUT, on=on))
    await driver.claim()
    await driver.wait("f", "c", "d", adds=[child("c"), child("d")], delay=10**9, heard=0, first=True)
    await driver.claim(want=1, worker="x")
    assert await wakes_of(driver) == ["wake:f"]
    await driver.stop(cause)
    assert await wakes_of(driver) == []
    assert await driver.shard.signal("f") == "stopping"
    await driver.end("cancelled", "f/c", worker="x")
    if on == "wake":
        await driver.undo(cause=cause)
    assert (await driver.states())["f"] == "cancelled"
    await finish_all(driver)


async def test_a_member_that_waits_ends_with_its_tree(step: TreeDriver) -> None:
    await step.wait("f/a", "c", "d", delay=500, heard=0, first=True)
    await step.cancel()
    assert await step.shard.state("f/a") == "cancelled"
    assert await wakes_of(step) == []
    await step.end("cancelled", "f/c", "f/d", worker="x")
    await step.undo(cause="cancelled")
    await finish_all(step)


@pytest.mark.parametrize("up", ["fail", "wake", "remove"])
@pytest.mark.parametrize("ended", [True, False])
async def test_a_failure_that_counts_does_what_its_policy_says(
    step: TreeDriver, up: Any, ended: bool
) -> None:
    await step.checkpoint(
        "f/a",
        **spawn_calls([child("k", up=up)], root="f", parent="f/a", awaited=(), wait=Wait())[0]._asdict(),
        opens=True,
    )
    assert await step.claim() == ["f/k"]
    if ended:
        await step.end("failed", "f/k", text="{}")
    await step.wait("f/a", "c", "k", delay=500, heard=0, first=True)
    if not ended:
        await step.end("failed", "f/k", text="{}")
    assert await wakes_of(step) == []
    assert await step.shard.state("f/a") == {"fail": "cancelled", "wake": "waiting", "remove": None}[up]
    if up == "wake":
        assert await step.claim() == ["f/a"]
        await step.end("completed", "f/a")
    await step.end("completed", "f/c", "f/d", worker="x")
    if up != "wake":
        await step.undo()
    await finish_all(step)


async def test_nothing_waits_in_a_tree_that_stops(step: TreeDriver) -> None:
    await step.cancel()
    assert await step.wait("f/a", "c", delay=500) == "stopping"
    assert await wakes_of(step) == []
    assert await step.shard.state("f/a") == "active"


async def test_a_job_that_was_released_is_rescued(step: TreeDriver) -> None:
    await step.wait("f/a", "c", "d", delay=500)
    step.shard.now += 500
    assert await step.claim() == ["f/a"]
    assert sorted(await step.lose()) == ["f/a rescued", "f/c rescued", "f/d rescued"]
    assert "f/a" in await step.claim()
    assert await left_of(step) == []


async def test_the_next_run_of_a_tree_knows_nothing_of_a_wait(driver: TreeDriver) -> None:
    await driver.add(make_tree({}, on="fail"))
    await driver.claim()
    await driver.wait("f", "c", adds=[child("c")], delay=500, heard=0)
    await driver.claim(worker="x")
    await driver.cancel()
    await driver.end("cancelled", "f/c", worker="x")
    again = await driver.shard.store.trees.restart("f", call="r", run=1, body="{}", now=driver.shard.now)
    assert again == "restarted"
    fields = await driver.shard.record("f")
    assert not fields.keys() & {"wakes", "listens"}
    driver.shard.now += 500
    assert await driver.run_all() == ["f"]


async def test_a_damaged_record_of_a_waiting_job(step: TreeDriver) -> None:
    await step.wait("f/a", "c", "d", delay=500)
    await step.shard.cut("f/a", 5)
    await step.end("completed", "f/c", "f/d", worker="x")
    step.shard.now += 500
    await step.do_chores()
    assert await wakes_of(step) == []
    assert await step.shard.state("f/a") == "failed"


async def test_needs_that_are_gone_hold_nobody_who_has_a_time(step: TreeDriver) -> None:
    await step.wait("f/a", "c", "d", delay=500)
    await step.shard.command("DEL", step.shard.key("needs", "f/a"))
    await step.end("completed", "f/c", worker="x")
    assert await step.claim() == []
    step.shard.now += 500
    assert await step.claim() == ["f/a"]


async def test_a_job_that_was_cancelled_while_it_ran_waits_for_nothing(step: TreeDriver) -> None:
    assert await step.cancel("f/a") == "asked"
    assert await step.wait("f/a", "c", delay=500) == "stopping"
    assert await step.spawn("f/a", child("n")) == "stopping"
    await step.end("completed", "f/a")
    assert await step.shard.state("f/a") == "cancelled"
