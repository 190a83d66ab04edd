"""mixed_waits.lua: a job waits for children, for the first of them, for a time and for a signal, whichever
comes first.
"""

from __future__ import annotations

from typing import Any

import pytest
from drivers.tree_driver import STEPS, TreeDriver
from drivers.waits import begin_step, child, finish_all, left_of, wakes_of

from eventbus.emit.job_tree import SpawnCall
from eventbus.store.bounds import HEAVY_ROWS
from eventbus.store.scripting.script_rows import Wait

_WAYS = ("child", "time", "signal")


@pytest.fixture
async def step(driver: TreeDriver) -> TreeDriver:
    return await begin_step(driver)


async def _release(driver: TreeDriver, way: str) -> None:
    if way == "child":
        await driver.end("completed", "f/c", worker="x")
    elif way == "signal":
        assert await driver.shard.signal("f/a") == "sent"
    else:
        driver.shard.now += 500


# one wait


async def test_a_job_goes_on_while_its_children_run(step: TreeDriver) -> None:
    assert await step.shard.state("f/a") == "active"
    await step.end("completed", "f/c", worker="x")
    assert await step.claim() == [], "its end changes nothing"
    assert await step.wait("f/a", "c", "d") == "waiting"
    assert await step.claim() == []
    await step.end("failed", "f/d", text="{}", worker="x")
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []
    await step.end("completed", "f/a")
    await finish_all(step)


@pytest.mark.parametrize("first", [True, False])
async def test_children_that_have_ended_are_not_waited_for(step: TreeDriver, first: bool) -> None:
    await step.end("completed", "f/c", worker="x")
    await step.end("failed", "f/d", text="{}", worker="x")
    assert await step.wait("f/a", "c", "d", first=first, delay=500, heard=0) == "waiting"
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []


async def test_what_has_no_record_is_not_waited_for(step: TreeDriver) -> None:
    assert await step.wait("f/a", "never", delay=500) == "waiting"
    assert await step.claim() == ["f/a"]


@pytest.mark.parametrize("ended", [True, False])
async def test_the_first_of_several_children_releases_the_job(step: TreeDriver, ended: bool) -> None:
    if ended:
        await step.end("completed", "f/d", worker="x")
    assert await step.wait("f/a", "c", "d", first=True) == "waiting"
    assert await step.wait("f/a", "c", "d", first=True, token=step.held["f/a"][1]) == "waiting", "a repeat"
    if not ended:
        assert await step.claim() == []
        await step.end("failed", "f/d", text="{}", worker="x")
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []
    await step.end("completed", "f/c", worker="x")
    assert await step.claim() == [], "it is released once"
    await step.end("completed", "f/a")
    await finish_all(step)


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("then", _WAYS)
async def test_whatever_comes_first_releases_the_job_once(step: TreeDriver, way: str, then: str) -> None:
    assert await step.wait("f/a", "c", "d", delay=500, heard=0, first=True) == "waiting"
    assert await wakes_of(step) == ["wake:f/a"]
    assert await step.claim() == []
    await _release(step, way)
    if way != then:
        await _release(step, then)
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []
    if "c" in {each[-1] for each in step.held}:
        await step.end("completed", "f/c", worker="x")
    await step.end("completed", "f/d", worker="x")
    step.shard.now += 500
    assert await step.claim() == []
    await step.end("completed", "f/a")
    await finish_all(step)


@pytest.mark.parametrize("way", _WAYS)
async def test_a_job_that_waits_again_hears_of_what_ended_meanwhile(step: TreeDriver, way: str) -> None:
    await step.wait("f/a", "c", "d", delay=500, heard=0, first=True)
    await _release(step, way)
    assert await step.claim() == ["f/a"]
    if way != "child":
        await step.end("completed", "f/c", worker="x")
    heard = int(way == "signal")
    assert await step.wait("f/a", "c", "d", heard=heard, first=True) == "waiting"
    assert await step.claim() == ["f/a"], "c has ended"
    assert await step.wait("f/a", "d", heard=heard) == "waiting"
    assert await step.claim() == []
    await step.end("completed", "f/d", worker="x")
    assert await step.claim() == ["f/a"]
    assert len(await step.shard.command("LRANGE", step.shard.key("feeds", "f/d"), 0, -1)) == 1


async def test_a_wait_for_a_time_and_a_signal_alone(step: TreeDriver) -> None:
    assert await step.wait("f/a", delay=500) == "waiting"
    await step.end("completed", "f/c", worker="x")
    assert await step.shard.signal("f/a") == "sent"
    assert await step.claim() == []
    step.shard.now += 500
    assert await step.claim() == ["f/a"]
    assert await step.wait("f/a", heard=1) == "waiting"
    await step.end("failed", "f/d", text="{}", worker="x")
    assert await step.claim() == []
    await step.shard.signal("f/a")
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []


@pytest.mark.parametrize("delay", [0, -5])
async def test_a_time_that_has_come_is_no_wait(step: TreeDriver, delay: int) -> None:
    assert await step.wait("f/a", "c", delay=delay) == "waiting"
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []


async def test_a_wait_forgets_attempts_and_stalls(step: TreeDriver) -> None:
    assert sorted(await step.lose()) == ["f/a rescued", "f/c rescued", "f/d rescued"]
    await step.claim()
    await step.end("delayed", "f/a", attempts=3)
    await step.claim()
    assert (step.held["f/a"][0].attempts, step.held["f/a"][0].stalls) == (3, 1)
    await step.wait("f/a", "c", delay=500)
    step.shard.now += 500
    await step.claim()
    assert (step.held["f/a"][0].attempts, step.held["f/a"][0].stalls) == (0, 0)


async def test_new_children_are_awaited_with_others(step: TreeDriver) -> None:
    assert await step.wait("f/a", "c", "n", adds=[child("n")], delay=500) == "waiting"
    await step.end("completed", "f/c", worker="x")
    assert await step.run() == ["f/n"]
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []


async def test_a_wait_that_becomes_the_next_one_of_the_shard_wakes_a_worker(step: TreeDriver) -> None:
    await step.shard.announce(queue=STEPS)
    await step.turn()
    await step.wait("f/a", "c", delay=500)
    assert await step.shard.members("wake", "pool") == [STEPS]
    assert (await step.turn()).next_due == step.shard.now + 500


async def test_the_time_of_an_earlier_wait_releases_no_later_one(step: TreeDriver) -> None:
    await step.wait("f/a", "c", delay=500, heard=0)
    await step.shard.signal("f/a")
    assert await step.claim() == ["f/a"]
    await step.wait("f/a", "c", delay=900)
    await step.shard.command(
        "ZADD", step.shard.shard_key("due"), step.shard.now + 500, "wake:f/a"
    )  # as if left
    step.shard.now += 500
    assert await step.claim() == []
    assert await wakes_of(step) == ["wake:f/a"], "it stands at its own time again"
    step.shard.now += 400
    assert await step.claim() == ["f/a"]
    await step.wait("f/a", "c")
    await step.shard.command("ZADD", step.shard.shard_key("due"), step.shard.now, "wake:f/a")
    assert await step.claim() == []
    assert await wakes_of(step) == []


async def test_children_that_are_added_again_are_awaited(step: TreeDriver) -> None:
    """A worker died behind an addition without a wait; the next run adds the same ones, and waits for
    them.
    """
    await step.end("completed", "f/c", worker="x")
    assert await step.spawn("f/a", child("c"), child("d"), child("n")) == "waiting"
    assert await step.run() == ["f/n"]
    assert await step.claim() == []
    await step.end("completed", "f/d", worker="x")
    assert await step.claim() == ["f/a"]
    await step.end("completed", "f/a")
    await finish_all(step)


# many children


@pytest.mark.parametrize("first", [True, False])
async def test_a_wait_for_many_is_said_in_several_calls(step: TreeDriver, first: bool) -> None:
    names = [f"n{i}" for i in range(2 * HEAVY_ROWS + 10)]
    adds = [child(each) for each in names]
    assert await step.wait("f/a", *names, adds=adds, first=first) == "waiting"
    assert sorted(await step.claim()) == sorted(each.id for each in adds)
    if not first:
        await step.end("completed", *(each.id for each in adds[1:]))
        assert await step.claim() == []
    await step.end("completed", "f/n0")
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []


async def _begin_to_say(driver: TreeDriver, child: str, *, first: bool = False) -> SpawnCall:
    """Send the first of two calls that say a wait together; return the second one, for `f/d`."""
    wait = Wait(1, first=int(first), call="one", total=2)
    call = SpawnCall((), (), wait, [child])
    assert await driver.checkpoint("f/a", **call._asdict()) == "ok"
    return call._replace(awaited=["f/d"])


@pytest.mark.parametrize("first", [True, False])
async def test_a_child_that_ends_while_the_wait_is_said(step: TreeDriver, first: bool) -> None:
    call = await _begin_to_say(step, "f/c", first=first)
    await step.end("completed", "f/c", worker="x")
    assert await step.claim() == []
    assert await step.checkpoint("f/a", **call._asdict(), waits=True) == "waiting"
    assert await step.claim() == (["f/a"] if first else [])
    await step.end("completed", "f/d", worker="x")
    assert await step.claim() == ([] if first else ["f/a"])
    assert await left_of(step) == []


async def test_who_dies_while_it_says_a_wait_leaves_nothing_of_it(step: TreeDriver) -> None:
    await _begin_to_say(step, "f/c")
    assert "f/a rescued" in await step.lose()
    assert "f/a" in await step.claim()
    assert await left_of(step) == []
    await step.wait("f/a", "d")
    await step.end("completed", "f/d")
    assert await step.claim() == ["f/a"], "it does not wait for c"


async def test_a_wait_replaces_one_that_was_not_said_to_its_end(step: TreeDriver) -> None:
    await _begin_to_say(step, "f/c")
    await step.wait("f/a", "d")
    await step.end("completed", "f/d", worker="x")
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []


async def test_a_plain_wait_forgets_one_that_was_not_said_to_its_end(step: TreeDriver) -> None:
    await _begin_to_say(step, "f/c", first=True)
    assert await step.spawn("f/a", child("n"), child("o")) == "waiting"
    await step.end("completed", "f/c", "f/d", worker="x")
    assert await step.claim() == ["f/n", "f/o"]
    await step.end("completed", "f/n")
    assert await step.claim() == [], "it waits for both new ones, and not for c"
    await step.end("completed", "f/o")
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []


# crash windows


async def test_suspend_not_answered(step: TreeDriver) -> None:
    """The repeat of the call answers by its token, also after the release, until the job is claimed again."""
    token = step.held["f/a"][1]
    given: dict[str, Any] = {"delay": 500, "heard": 0, "first": True, "token": token}
    for _ in range(3):
        assert await step.wait("f/a", "c", "d", **given) == "waiting"
    await step.end("completed", "f/c", worker="x")
    assert await step.wait("f/a", "c", "d", **given) == "waiting"
    assert await wakes_of(step) == []
    assert await step.claim() == ["f/a"]
    assert await step.wait("f/a", "c", "d", **given) == "lost"
    assert await step.shard.state("f/a") == "active"


@pytest.mark.parametrize("early", [True, False])
async def test_signal_meets_suspend(step: TreeDriver, early: bool) -> None:
    if early:
        await step.shard.signal("f/a")
    assert await step.wait("f/a", "c", "d", heard=0, delay=500) == "waiting"
    assert bool(await wakes_of(step)) is not early
    if not early:
        await step.shard.signal("f/a")
    assert await step.claim() == ["f/a"]
    assert await left_of(step) == []
    assert await step.wait("f/a", "c", "d", heard=1, delay=500) == "waiting"
    assert await step.claim() == [], "it left that signal in its inbox, and knows of it"


@pytest.mark.parametrize("way", ["time", "signal"])
async def test_timer_and_signal(step: TreeDriver, way: str) -> None:
    await step.wait("f/a", "c", heard=0, delay=500)
    step.shard.now += 500
    if way == "time":
        await step.turn(want=0)
        assert await step.shard.state("f/a") == "waiting"
    await step.shard.signal("f/a")
    assert await step.claim() == ["f/a"]
    assert await step.claim(worker="x") == []
    assert await left_of(step) == []


async def test_child_ends_before_suspend(step: TreeDriver) -> None:
    await step.end("completed", "f/c", worker="x")
    assert await step.wait("f/a", "c", "d", delay=500) == "waiting"
    needs = await step.shard.command("SMEMBERS", step.shard.key("needs", "f/a"))
    assert needs == ["f/d"]
    await step.end("completed", "f/d", worker="x")
    assert await step.claim() == ["f/a"]


async def test_signal_sent_twice(step: TreeDriver) -> None:
    await step.wait("f/a", "c", heard=0)
    for _ in range(2):
        assert await step.shard.signal("f/a", signal="s1") == "sent"
    assert await step.claim() == ["f/a"]
    await step.wait("f/a", "c", heard=1)
    assert await step.shard.signal("f/a", signal="s1") == "sent"
    assert await step.claim() == []


@pytest.mark.parametrize("first", [True, False])
async def test_child_and_timer_in_the_same_instant(step: TreeDriver, first: bool) -> None:
    await step.wait("f/a", "c", "d", first=first, delay=500)
    step.shard.now += 500
    answer = await step.end("completed", "f/c", "f/d", worker="x", want=1000)
    assert [each.id for each in answer.claims] == ["f/a"]
    assert await step.claim() == []
    assert await left_of(step) == []
