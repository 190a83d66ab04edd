"""Damaged and foreign records inside a tree: only they are set apart, and the tree reaches a reported end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drivers.shards import settle, turn_queue
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree, pieces_of

from eventbus.emit.job_tree import Member
from eventbus.store.scripting.script_rows import SweepQueue

_DAMAGES = ["missing", "foreign", "no queue", "no state", "bad priority"]


async def _damage(driver: TreeDriver, job: str, how: str) -> None:
    name = driver.shard.key("job", job)
    if how == "no queue":
        await driver.shard.cut(job, 9)
    elif how == "no state":
        await driver.shard.command("SETRANGE", name, 0, "*")
    elif how == "bad priority":
        await driver.shard.change(job, priority="first")
    else:
        await driver.shard.command("DEL", name)
        if how == "foreign":
            await driver.shard.command("RPUSH", name, "it is mine")


async def _end_all(driver: TreeDriver, cause: str = "failed") -> None:
    """Whatever is left is run; the root undoes."""
    for _ in range(6):
        for job in await driver.claim():
            if driver.held[job][0].stop:
                assert driver.held[job][0].stop == cause
                await driver.checkpoint(job, acknowledges=True)
                await driver.end("failed", job, text='{"message":"undone"}')
            else:
                await driver.end("completed", job)


@pytest.mark.parametrize("how", ["missing", "foreign", "no queue", "no state"])
async def test_a_member_that_cannot_go_on_when_what_it_needs_has_ended(driver: TreeDriver, how: str) -> None:
    await driver.add(make_tree({"a": "", "b": "a", "c": "b"}))
    await driver.claim()
    await _damage(driver, "f/b", how)
    await driver.end("completed", "f/a")
    state, text = await driver.outcome("f/b")
    assert (state, json.loads(text)["type"]) == ("failed", "StoreCorrupt")
    await _end_all(driver)
    assert await driver.outcome("f") == ("failed", '{"message":"undone"}')
    assert await driver.done() == ["a"]


@pytest.mark.parametrize("how", _DAMAGES)
async def test_a_member_that_is_damaged_where_it_waits_to_run(driver: TreeDriver, how: str) -> None:
    await driver.add(make_tree({"a": "", "b": "", "c": "a b"}))
    await _damage(driver, "f/a", how)
    assert await driver.claim() == ["f/b"]
    assert await driver.shard.state("f/a") == "failed"
    assert (await driver.look()).root["stopper"] == "f/a"
    await driver.end("completed", "f/b")
    await _end_all(driver)
    assert (await driver.states())["f"] == "failed"
    assert await driver.done() == ["b"]


@pytest.mark.parametrize("how", ["missing", "foreign", "no queue", "no state"])
async def test_a_member_that_is_damaged_while_it_runs(driver: TreeDriver, how: str) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.claim()
    await _damage(driver, "f/a", how)
    late = await driver.turn(settle(*driver.held["f/a"]), want=0)
    assert late.lost == ["f/a"]
    await driver.lose()
    await _end_all(driver)
    assert (await driver.states())["f"] == "failed"


@pytest.mark.parametrize("how", ["missing", "foreign", "no queue", "no state"])
async def test_a_root_that_is_damaged_starts_nothing_more(driver: TreeDriver, how: str) -> None:
    await driver.add(make_tree({"a": "", "b": "a", "x": "", "y": ""}))
    await driver.claim(want=2)
    await _damage(driver, "f", how)
    assert await driver.claim() == []
    states = [await driver.shard.state(each) for each in ("f", "f/x", "f/y")]
    assert states == ["failed", "active", "cancelled"]
    await driver.end("completed", *list(driver.held))
    await _end_all(driver)
    assert await driver.shard.state("f") == "failed"
    assert await driver.shard.members("ready", STEPS) == []
    assert await driver.shard.held() == []
    driver.shard.now += 8 * 86_400_000
    await driver.do_chores()
    assert {each.partition(":")[0] for each in await driver.keys()} <= {
        "job",
        "raw",
        "rawmore",
        "result",
        "failed",
    }


async def test_a_root_that_is_damaged_where_it_waits_to_run(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": ""}))
    await driver.run()
    await _damage(driver, "f", "bad priority")
    assert await driver.claim() == []
    state, text = await driver.outcome("f")
    assert (state, json.loads(text)["type"]) == ("failed", "StoreCorrupt")
    assert await driver.shard.members("roots", ROOTS) == []


async def test_members_of_a_root_that_was_set_apart_do_not_start(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": ""}, awaited=["a"]))
    await driver.claim(want=1)
    await driver.end("completed", "f/a")
    await _damage(driver, "f", "bad priority")
    assert (await driver.turn(queues=(turn_queue(ROOTS),))).claims == []
    assert await driver.claim() == []
    assert await driver.shard.state("f/b") == "cancelled"
    driver.shard.now += 200_000
    assert await driver.shard.sweep(SweepQueue(ROOTS, 0, 0, 0, 0)) == 1
    assert [each for each in await driver.keys() if not each.startswith("raw")] == []


@pytest.mark.parametrize("kind", ["needs", "feeds", "members", "done", "leaves", "checkpoints", "waiters"])
@pytest.mark.parametrize("job", ["f", "f/a", "f/b"])
@pytest.mark.parametrize("ends", ["completed", "failed"])
async def test_a_key_that_is_somebody_elses_stops_no_worker(
    driver: TreeDriver, kind: str, job: str, ends: str
) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}, timeout=60.0))
    await driver.add(make_tree({"a": "", "b": "a"}, root="g"))
    name = driver.shard.key(kind, job)
    await driver.shard.command("DEL", name)
    await driver.shard.command("SET", name, "it is mine")
    assert await driver.claim() == ["f/a", "g/a"]
    await driver.end(ends, "f/a", text="{}")
    await driver.end("completed", "g/a")
    await driver.claim()
    await driver.end("completed", *list(driver.held))
    driver.shard.now += 60_000
    for _ in range(4):
        await driver.end("completed", *await driver.claim())
    assert (await driver.states("g"))["g"] == "completed"
    await driver.look()
    await driver.look(listed="done")
    await driver.cancel("f")
    driver.shard.now += 200_000
    await driver.shard.sweep(SweepQueue(ROOTS, 0, 0, 0, 0))
    await driver.do_chores()
    await driver.shard.command("DEL", name)


async def test_a_last_piece_after_its_root_was_damaged_is_gone_or_opens_nothing(driver: TreeDriver) -> None:
    first, second = pieces_of(make_tree({"a": "", "b": "a"}), 2)
    await driver.send(first)
    await _damage(driver, "f", "foreign")
    assert (await driver.send(second)).word == "gone"
    assert await driver.claim() == []


# what ties a tree together


async def _spoil(driver: TreeDriver, kind: str, job: str, how: str = "foreign") -> None:
    """Put somebody else's value into the place of a key, or remove it."""
    name = driver.shard.key(kind, job)
    await driver.shard.command("DEL", name)
    if how == "foreign":
        await driver.shard.command("SET", name, "it is mine")


async def _error_of(driver: TreeDriver, job: str) -> dict[str, Any]:
    """The error in a record, also in one that is not its outcome yet."""
    record = await driver.shard.record(job)
    return json.loads(
        record.get("result") or await driver.shard.command("GET", driver.shard.key("result", job))
    )


async def _clear(driver: TreeDriver, kind: str, job: str) -> None:
    """What the test put there is no leak."""
    await driver.shard.command("DEL", driver.shard.key(kind, job))


@pytest.mark.parametrize("ends", ["completed", "failed"])
@pytest.mark.parametrize(
    ("kind", "job", "how"),
    [
        ("feeds", "f/a", "foreign"),
        ("needs", "f/b", "foreign"),
        ("needs", "f/b", "gone"),
        ("needs", "f", "foreign"),
        ("needs", "f", "gone"),
        ("done", "f", "foreign"),
    ],
)
async def test_a_tree_whose_ties_are_damaged_stops_at_the_end_of_a_member(
    driver: TreeDriver, kind: str, job: str, how: str, ends: str
) -> None:
    await driver.add(make_tree({"a": "", "b": "a", "c": ""}, awaited=["a", "b", "c"]))
    assert await driver.claim() == ["f/a", "f/c"]
    await _spoil(driver, kind, job, how)
    await driver.end(ends, "f/a", text='{"type":"Bad","message":"no"}')
    page = await driver.look()
    assert page.root["stop"] == "failed", "at once, not when the next one ends"
    if ends == "completed" or (kind, job) in (("feeds", "f/a"), ("needs", "f")):  # else the failure stops it
        error = await _error_of(driver, "f/b" if job == "f/b" else "f")
        assert error["type"] == "StoreCorrupt"
        assert f"{kind}:{job}" in error["message"]
    await driver.end("completed", "f/c")
    await _end_all(driver)
    assert await driver.shard.state("f") == "failed"
    assert set((await driver.states()).values()) <= {"completed", "failed", "cancelled"}
    await _clear(driver, kind, job)


async def test_a_member_that_cannot_be_told_in_a_call_that_has_told_enough_is_noticed_too(
    driver: TreeDriver,
) -> None:
    many = {f"m{n:03}": "a" for n in range(250)}
    await driver.add(make_tree({"a": "", "b": "", "z": "b", **many}))
    await driver.claim()
    await _spoil(driver, "feeds", "f/b")
    await driver.end("completed", "f/a", "f/b")
    assert (await driver.look()).root["stopper"] == "f/b"
    await driver.do_chores()
    await _end_all(driver)
    assert (await driver.states())["f"] == "failed"
    await _clear(driver, "feeds", "f/b")


async def test_a_job_that_waits_for_children_which_nobody_knows_any_more_ends(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.claim()
    await driver.spawn("f/a", Member("f/k", STEPS))
    await driver.claim()
    await _spoil(driver, "needs", "f/a")
    await driver.end("completed", "f/k")
    assert (await _error_of(driver, "f/a"))["type"] == "StoreCorrupt"
    await _end_all(driver)
    assert (await driver.states())["f"] == "failed"


async def test_a_job_that_runs_beside_children_which_nobody_knows_any_more_stops_its_tree(
    driver: TreeDriver,
) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.claim()
    await driver.spawn("f/a", Member("f/k", STEPS), waits=False)
    await driver.claim()
    await _spoil(driver, "needs", "f/a")
    await driver.end("completed", "f/k")
    assert (await driver.look()).root["stop"] == "failed"
    await driver.end("completed", "f/a")
    await _end_all(driver)
    assert (await driver.states())["f"] == "failed"


async def test_leaves_that_cannot_be_read_stop_the_tree_when_it_is_opened(driver: TreeDriver) -> None:
    *first, last = pieces_of(make_tree({"a": "", "b": "", "c": "a b"}), 3)
    for each in first:
        await driver.send(each)
    await _spoil(driver, "leaves", "f")
    await driver.send(last)
    assert (await _error_of(driver, "f"))["type"] == "StoreCorrupt"
    assert await driver.claim() == ["f"]
    await driver.checkpoint("f", acknowledges=True)
    await driver.end("failed", "f", text="{}")
    await _clear(driver, "leaves", "f")


@pytest.mark.parametrize("how", ["foreign", "gone"])
async def test_a_stopped_root_finds_anew_for_whom_it_waits(driver: TreeDriver, how: str) -> None:
    await driver.add(make_tree({"a": "", "b": "", "c": "a b"}))
    await driver.claim()
    await driver.cancel()
    await _spoil(driver, "needs", "f", how)
    await driver.end("cancelled", "f/a", text="{}")
    assert await driver.claim() == [], "f/b still runs"
    await driver.end("cancelled", "f/b", text="{}")
    await driver.undo(cause="cancelled")


@pytest.mark.parametrize("kind", ["members", "done"])
async def test_a_stopped_root_is_told_that_it_cannot_know_all_that_was_done(
    driver: TreeDriver, kind: str
) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.run()
    assert "damaged" not in (await driver.look()).root
    await _spoil(driver, kind, "f")
    await driver.claim()
    await driver.cancel()
    assert (await driver.look()).root["damaged"] == "1"
    await driver.end("cancelled", "f/b", text="{}")
    await driver.undo(cause="cancelled")
    await _clear(driver, kind, "f")


async def test_a_tree_inside_whose_end_cannot_be_told_stops_the_outer_one(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.claim()
    await driver.spawn("f/a", Member("n", ROOTS, body="{}", is_root=True))
    assert await driver.claim() == ["n"]
    await _spoil(driver, "feeds", "n")
    await driver.end("completed", "n")
    assert (await driver.look()).root["stopper"] == "n"
    await _end_all(driver)
    assert (await driver.states())["f"] == "failed"
    await _clear(driver, "feeds", "n")
