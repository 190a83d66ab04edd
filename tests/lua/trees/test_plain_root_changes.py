"""Roots without members to which something unusual happens: however they were added, the same becomes of
them.
"""

from __future__ import annotations

import pytest
from drivers.lone_roots import Way, add_root, is_brief, lists
from drivers.shards import settle, turn_queue
from drivers.tree_driver import ROOTS, STEPS, TreeDriver

from eventbus.emit.job_tree import Member
from eventbus.store.scripting.script_rows import SaveRow, SweepQueue

_ERROR = '{"type":"E","message":"boom"}'
_QUEUES = (turn_queue(ROOTS), turn_queue(STEPS))


async def _undo(driver: TreeDriver, cause: str) -> None:
    await driver.undo(cause=cause)
    state = "failed" if cause == "failed" else "cancelled"
    assert await lists(driver) == {state: ["f"]}
    assert not await is_brief(driver)
    assert (await driver.look()).root["stop"] == cause


async def test_a_failure_wakes_it_once_more(driver: TreeDriver, way: Way) -> None:
    await driver.shard.open_replies()
    await add_root(driver, way, reply=True, timeout=60.0)
    await driver.claim()
    await driver.end("failed", "f", text=_ERROR, attempts=1)
    assert await lists(driver) == {"ready": ["f"], "roots": ["f"], "due": ["timeout:f"]}
    record = await driver.shard.record("f")
    assert (record["tree"], record["on"], record["stop"], record["stopper"]) == ("1", "wake", "failed", "f")
    await _undo(driver, "failed")
    assert [each[0][:2] for each in await driver.shard.replies()] == [("f", "failed")]


@pytest.mark.parametrize("stops", ["cancelled", "timeout"])
@pytest.mark.parametrize("runs", [False, True])
async def test_a_stop_wakes_it_to_undo(driver: TreeDriver, way: Way, stops: str, runs: bool) -> None:
    await add_root(driver, way, timeout=3600.0)
    if runs:
        await driver.claim()
    await driver.stop(stops)
    assert (await driver.look()).root["stop"] == stops
    if runs:
        assert "cancel:f" in await driver.shard.members("control", "w")
        assert await driver.shard.renew(("f", driver.held["f"][1])) == []
        assert driver.shard.cancelled == ["f"]
        await driver.end("completed", "f")  # it did not know yet
    await _undo(driver, stops)


async def test_a_cancel_of_one_in_the_middle_of_a_line_leaves_a_tombstone(
    driver: TreeDriver, way: Way
) -> None:
    for root in "fgh":
        await add_root(driver, way, root)
    assert await driver.cancel("g") == "asked"
    assert await driver.claim() == ["f", "h", "g"]
    assert driver.held["g"][0].stop == "cancelled"
    assert await driver.shard.command("HLEN", driver.shard.shard_key("dead")) == 0


@pytest.mark.parametrize("delay", [0, 500])
async def test_a_retry(driver: TreeDriver, way: Way, delay: int) -> None:
    await add_root(driver, way)
    await driver.claim()
    await driver.end("delayed", "f", text=_ERROR, attempts=1, delay=delay)
    assert (await driver.look()).root["attempts"] == "1"
    driver.shard.now += delay
    await driver.turn(want=0)
    assert await driver.claim() == ["f"]
    assert driver.held["f"][0].attempts == 1
    assert await driver.cancel() == "asked"
    await driver.end("completed", "f")
    await _undo(driver, "cancelled")


async def test_it_is_given_back_and_parked(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way)
    await driver.claim()
    await driver.end("waiting", "f")
    assert await is_brief(driver) == (way == "alone")
    assert await driver.claim() == ["f"]
    await driver.end("parked", "f", text="no such version")
    assert await lists(driver) == {"parked": ["f"], "roots": ["f"]}
    await driver.shard.announce(queue=ROOTS, unpark=True)
    assert await driver.run() == ["f"]
    assert await lists(driver) == {"completed": ["f"]}


async def test_its_worker_is_lost(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way)
    await driver.claim()
    token = driver.held["f"][1]
    assert await driver.lose() == ["f rescued"]
    answer = await driver.turn(settle(driver.held["f"][0], token), want=0)
    assert answer.lost == ["f"]
    assert await driver.claim(worker="x") == ["f"]
    assert driver.held["f"][0].stalls == 1
    await driver.end("completed", "f")
    assert await lists(driver) == {"completed": ["f"]}


async def test_it_stalls_too_often(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way)
    for _ in range(2):
        await driver.claim()
        assert await driver.lose(max_stalls=1) == ["f rescued"]
    assert driver.shard.stalls[0].verdict == "rescued"
    root = (await driver.look()).root
    assert (root["stop"], root["lost"]) == ("failed", "2")
    await _undo(driver, "failed")
    assert (await driver.look()).root["lost"] == "2"


async def test_the_stop_keeps_how_many_leases_ran_out_before_it_and_counts_those_behind_it_apart(
    driver: TreeDriver, way: Way
) -> None:
    await add_root(driver, way)
    await driver.claim()
    assert await driver.lose() == ["f rescued"]
    assert "lost" not in (await driver.look()).root
    assert await driver.cancel() == "asked"
    await driver.claim()
    assert (driver.held["f"][0].stop, driver.held["f"][0].stalls) == ("cancelled", 0)
    assert await driver.lose() == ["f rescued"]
    root = (await driver.look()).root
    assert (root["lost"], root["stalls"]) == ("1", "1")


async def test_it_is_stopped_while_its_worker_is_lost(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way)
    await driver.claim()
    assert await driver.cancel() == "asked"
    assert await driver.lose() == ["f rescued"]
    await _undo(driver, "cancelled")


async def test_it_is_given_back_because_its_worker_does_not_know_of_it(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way)
    await driver.claim()
    calls = (driver.shard.calls("w"), 0)
    await driver.shard.renew(calls=calls)
    assert driver.shard.returned == ["f"]
    assert await driver.claim() == ["f"]
    await driver.end("completed", "f")
    assert await lists(driver) == {"completed": ["f"]}


@pytest.mark.parametrize("waits", [False, True])
async def test_members_that_it_adds_while_it_runs(driver: TreeDriver, way: Way, waits: bool) -> None:
    await add_root(driver, way)
    await driver.claim()
    assert await driver.spawn("f", Member("f/a", STEPS), waits=waits) == ("waiting" if waits else "ok")
    assert await driver.states() == {"f": "waiting-children" if waits else "active", "a": "waiting"}
    assert not await is_brief(driver)
    if not waits:
        await driver.end("completed", "f")
        assert await driver.claim() == ["f/a"]
        return
    assert await driver.run() == ["f/a"]
    assert await driver.run() == ["f"]
    assert await driver.done() == ["a"]
    driver.shard.now += 200_000
    assert await driver.shard.sweep(SweepQueue(ROOTS, 0, 1000, 0, 1000)) == 1
    assert await driver.keys() == []


async def test_members_that_another_job_adds_to_it(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way)
    await add_root(driver, way, "g")
    await driver.claim()
    await driver.end("waiting", "g")
    assert await driver.spawn("f", Member("g/a", STEPS), tree="g", waits=False) == "ok"
    assert sorted(await driver.claim()) == ["g", "g/a"]
    assert await driver.cancel("g") == "asked"
    await driver.end("cancelled", "g/a")
    await driver.end("completed", "g")
    assert await driver.claim() == ["g"]


async def test_a_child_that_fails_stops_it(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way)
    await driver.claim()
    await driver.spawn("f", Member("f/a", STEPS))
    await driver.claim()
    await driver.end("failed", "f/a", text=_ERROR)
    await _undo(driver, "failed")


async def test_it_sleeps_is_signalled_and_has_a_journal(driver: TreeDriver, way: Way) -> None:
    shard = driver.shard
    await add_root(driver, way)
    await driver.claim()
    assert await shard.append("f", driver.held["f"][1], 0, "one", live={"state": "s"}) == ("ok", 0)
    await driver.end("suspended", "f", text="0", delay=-1)
    assert await driver.states() == {"f": "waiting-children"}
    assert await shard.signal("f") == "sent"
    assert await driver.claim() == ["f"]
    assert await shard.append("f", driver.held["f"][1], 1, "two") == ("ok", 0)
    await driver.end("suspended", "f", text="", delay=700)
    assert await lists(driver) == {"delayed": ["f"], "roots": ["f"], "due": [f"q:{ROOTS}"]}
    shard.now += 700
    assert await driver.run() == ["f"]
    assert await shard.command("LRANGE", shard.key("journal", "f"), 0, -1) == ["one", "two"]
    assert await lists(driver) == {"completed": ["f"]}


async def test_a_journal_is_brought_again_and_goes_with_it(driver: TreeDriver, way: Way) -> None:
    shard = driver.shard
    await add_root(driver, way)
    await driver.claim()
    await shard.append("f", driver.held["f"][1], 0, "one")
    await driver.lose()
    answer = await driver.turn()
    assert [(each.id, each.entries) for each in answer.journals] == [("f", ["one"])]
    assert await is_brief(driver) == (way == "alone")
    assert await driver.cancel() == "asked"
    assert await shard.append("f", driver.held["f"][1], 1, "two") == ("stopping", 1)
    await driver.end("completed", "f")
    await _undo(driver, "cancelled")
    shard.now += 200_000
    await shard.sweep(SweepQueue(ROOTS, 0, 1000, 0, 1000))
    assert await driver.keys() == []


async def test_checkpoints_and_progress(driver: TreeDriver, way: Way) -> None:
    await add_root(driver, way)
    await driver.claim()
    assert await driver.checkpoint("f", saves=[SaveRow("x", "1")]) == "ok"
    assert await driver.shard.note("f", driver.held["f"][1], "half") == []
    assert (await driver.look()).saved == {"x": "1"}
    assert await driver.checkpoint("f", token="w:99") == "lost"
    assert await driver.checkpoint("f", acknowledges=True) == "ok"
    await driver.end("completed", "f")
    assert await lists(driver) == {"completed": ["f"]}
    driver.shard.now += 200_000
    await driver.shard.sweep(SweepQueue(ROOTS, 0, 1000, 0, 1000))
    assert await driver.keys() == []
