"""Damaged and foreign records inside a tree: set apart alone, and the tree goes on to an end that somebody hears."""

from __future__ import annotations

import json
from typing import Any

import pytest
from groves import ROOTS, STEPS, Grove, make_tree, pieces_of
from shards import settle, turn_queue

from eventbus.store.rows import SweepQueue

_DAMAGES: dict[str, list[Any]] = {
    "missing": [],
    "foreign": ["SET", "it is mine"],
    "no queue": ["HDEL", "queue"],
    "no state": ["HDEL", "state"],
    "bad order": ["HSET", "order", "first"],
}


async def _damage(grove: Grove, job: str, how: str) -> None:
    name = grove.shard.key("job", job)
    if how in ("missing", "foreign"):
        await grove.shard.command("DEL", name)
    if command := _DAMAGES[how]:
        await grove.shard.command(command[0], name, *command[1:])


async def _end_all(grove: Grove, cause: str = "failed") -> None:
    """Whatever is left is run; the root undoes."""
    for _ in range(6):
        for job in await grove.claim():
            if grove.held[job][0].stop:
                assert grove.held[job][0].stop == cause
                await grove.checkpoint(job, acknowledges=True)
                await grove.end("failed", job, text='{"message":"undone"}')
            else:
                await grove.end("completed", job)


@pytest.mark.parametrize("how", ["missing", "foreign", "no queue", "no state"])
async def test_a_member_that_cannot_go_on_when_what_it_needs_has_ended(grove: Grove, how: str) -> None:
    await grove.add(make_tree({"a": "", "b": "a", "c": "b"}))
    await grove.claim()
    await _damage(grove, "f/b", how)
    await grove.end("completed", "f/a")
    state, text = await grove.outcome("f/b")
    assert (state, json.loads(text)["type"]) == ("failed", "StoreCorrupt")
    await _end_all(grove)
    assert await grove.outcome("f") == ("failed", '{"message":"undone"}')
    assert await grove.done() == ["a"]


@pytest.mark.parametrize("how", list(_DAMAGES))
async def test_a_member_that_is_damaged_where_it_waits_to_run(grove: Grove, how: str) -> None:
    await grove.add(make_tree({"a": "", "b": "", "c": "a b"}))
    await _damage(grove, "f/a", how)
    assert await grove.claim() == ["f/b"]
    assert await grove.shard.state("f/a") == "failed"
    assert (await grove.look()).root["stopper"] == "f/a"
    await grove.end("completed", "f/b")
    await _end_all(grove)
    assert (await grove.states())["f"] == "failed"
    assert await grove.done() == ["b"]


@pytest.mark.parametrize("how", ["missing", "foreign", "no queue", "no state"])
async def test_a_member_that_is_damaged_while_it_runs(grove: Grove, how: str) -> None:
    await grove.add(make_tree({"a": "", "b": "a"}))
    await grove.claim()
    await _damage(grove, "f/a", how)
    late = await grove.turn(settle(*grove.held["f/a"]), want=0)
    assert late.lost == ["f/a"]
    await grove.lose()
    await _end_all(grove)
    assert (await grove.states())["f"] == "failed"


@pytest.mark.parametrize("how", ["missing", "foreign", "no queue", "no state"])
async def test_a_root_that_is_damaged_starts_nothing_more(grove: Grove, how: str) -> None:
    await grove.add(make_tree({"a": "", "b": "a", "x": "", "y": ""}))
    await grove.claim(want=2)
    await _damage(grove, "f", how)
    if how != "no queue":  # which no claim of a member needs
        assert await grove.claim() == []
        assert [await grove.shard.state(each) for each in ("f", "f/x", "f/y")] == [
            "failed",
            "active",
            "cancelled",
        ]
    await grove.end("completed", *list(grove.held))
    await _end_all(grove)
    assert await grove.shard.state("f") == "failed"
    assert await grove.shard.members("ready", STEPS) == []
    assert await grove.shard.members("active", "") == []
    grove.shard.now += 8 * 86_400_000
    await grove.do_chores()
    assert {each.partition(":")[0] for each in await grove.keys()} <= {"job", "raw", "result", "failed"}


async def test_a_root_that_is_damaged_where_it_waits_to_run(grove: Grove) -> None:
    await grove.add(make_tree({"a": ""}))
    await grove.run()
    await _damage(grove, "f", "bad order")
    assert await grove.claim() == []
    state, text = await grove.outcome("f")
    assert (state, json.loads(text)["type"]) == ("failed", "StoreCorrupt")
    assert await grove.shard.members("roots", ROOTS) == []


async def test_members_of_a_root_that_was_set_apart_do_not_start(grove: Grove) -> None:
    await grove.add(make_tree({"a": "", "b": ""}, awaited=["a"]))
    await grove.claim(want=1)
    await grove.end("completed", "f/a")
    await _damage(grove, "f", "bad order")
    assert (await grove.turn(queues=(turn_queue(ROOTS),))).claims == []
    assert await grove.claim() == []
    assert await grove.shard.state("f/b") == "cancelled"
    grove.shard.now += 200_000
    assert await grove.shard.sweep(SweepQueue(ROOTS, 0, 0, 0, 0)) == 1
    assert [each for each in await grove.keys() if not each.startswith("raw")] == []


@pytest.mark.parametrize("kind", ["needs", "feeds", "members", "done", "leaves", "checkpoints", "waiters"])
@pytest.mark.parametrize("job", ["f", "f/a", "f/b"])
@pytest.mark.parametrize("ends", ["completed", "failed"])
async def test_a_key_that_is_somebody_elses_stops_no_worker(
    grove: Grove, kind: str, job: str, ends: str
) -> None:
    await grove.add(make_tree({"a": "", "b": "a"}, timeout=60.0))
    await grove.add(make_tree({"a": "", "b": "a"}, root="g"))
    name = grove.shard.key(kind, job)
    await grove.shard.command("DEL", name)
    await grove.shard.command("SET", name, "it is mine")
    assert await grove.claim() == ["f/a", "g/a"]
    await grove.end(ends, "f/a", text="{}")
    await grove.end("completed", "g/a")
    await grove.claim()
    await grove.end("completed", *list(grove.held))
    grove.shard.now += 60_000
    for _ in range(4):
        await grove.end("completed", *await grove.claim())
    assert (await grove.states("g"))["g"] == "completed"
    await grove.look()
    await grove.look(listed="done")
    await grove.cancel("f")
    grove.shard.now += 200_000
    await grove.shard.sweep(SweepQueue(ROOTS, 0, 0, 0, 0))
    await grove.do_chores()
    await grove.shard.command("DEL", name)


async def test_a_last_piece_after_its_root_was_damaged_is_gone_or_opens_nothing(grove: Grove) -> None:
    first, second = pieces_of(make_tree({"a": "", "b": "a"}), 2)
    await grove.send(first)
    await _damage(grove, "f", "foreign")
    assert (await grove.send(second)).word == "gone"
    assert await grove.claim() == []
