"""Members are kept as long as their root, and go with it; nothing of a tree is left over."""

from __future__ import annotations

import pytest
from groves import ROOTS, STEPS, Grove, make_tree
from shards import turn_queue

from eventbus.store.rows import SaveRow, SweepQueue
from eventbus.tree import Member

_DAY = 86_400_000
_LARGE = '"' + "x" * 500 + '"'
_SWEPT = [SweepQueue(name, 0, 1000, 0, 1000) for name in (ROOTS, STEPS)]
_STRICT = [
    turn_queue(name, keep_completed=0, age_completed=0, keep_failed=0, age_failed=0)
    for name in (ROOTS, STEPS)
]


async def _grow(grove: Grove, end: str) -> None:
    """A tree with everything that a tree may have: nested, saved, logged, large."""
    names = {"a": "", "b": "a", "p": "", "z": "b p"}
    await grove.add(make_tree(names, body=_LARGE, timeout=3600.0, key="k", print="p"), 2)
    assert sorted(await grove.claim()) == ["f/a", "f/p"]
    await grove.checkpoint("f/a", saves=[SaveRow("x", _LARGE)])
    await grove.end("delayed", "f/a", text=_LARGE, attempts=1)
    await grove.claim()
    await grove.shard.note("f/a", grove.held["f/a"][1], "1")
    await grove.spawn("f/p", Member("n", ROOTS, body=_LARGE, is_root=True, timeout=60.0, on="wake"))
    await grove.claim()
    await grove.spawn("n", Member("n/x", STEPS), tree="n", saves=[SaveRow("x", "y")])
    await grove.claim()
    await grove.end("completed", "n/x", text=_LARGE)
    await grove.end(end, "f/a", text=_LARGE)
    for _ in range(8):
        for job in await grove.claim():
            await grove.checkpoint(job, acknowledges=True)
            await grove.end("failed" if grove.held[job][0].stop else "completed", job, text=_LARGE)
    assert (await grove.states())["f"] == end


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_members_are_kept_while_their_root_is_and_go_with_it(grove: Grove, end: str) -> None:
    await _grow(grove, end)
    grove.shard.now += 130_000
    before = await grove.keys()
    assert (
        await grove.shard.sweep(
            *[
                each._replace(keep_completed=10, keep_failed=10, age_completed=_DAY, age_failed=_DAY)
                for each in _SWEPT
            ]
        )
        == 0
    )
    assert await grove.keys() == before
    assert await grove.shard.sweep(*_SWEPT) == 1
    pointer = [f"key:{ROOTS}:k"]
    assert await grove.keys() == pointer
    assert await grove.states() == {"f": "unknown"}


async def test_members_of_an_open_tree_are_never_removed(grove: Grove) -> None:
    await grove.add(make_tree({"a": "", "b": "a"}))
    await grove.run()
    grove.shard.now += 30 * _DAY
    assert await grove.shard.sweep(*_SWEPT) == 0
    await grove.turn(want=0, queues=_STRICT)
    assert (await grove.states())["a"] == "completed"
    assert await grove.run_all() == ["f/b", "f"]


async def test_a_turn_that_ends_a_root_removes_older_trees(grove: Grove) -> None:
    for root in ("f", "g"):
        await grove.add(make_tree({"a": ""}, root=root))
        await grove.claim()
        await grove.end("completed", f"{root}/a", queues=_STRICT)
        await grove.claim()
        grove.shard.now += 200_000
        grove.shard.now -= (grove.shard.now + 1) % 8  # the time decides when retention looks
        await grove.end("completed", root, queues=_STRICT)
    assert not [each for each in await grove.keys() if each.partition(":")[2] in ("f", "f/a")]
    assert (await grove.states("g"))["a"] == "completed"


async def test_a_large_tree_is_removed_in_steps_with_nothing_left(grove: Grove) -> None:
    names = [f"m{i}" for i in range(700)]
    await grove.add(make_tree({"a": "", **dict.fromkeys(names, "a")}), 200)
    await grove.run()
    while jobs := [*await grove.run()]:
        assert jobs
    await grove.do_chores()
    await grove.run_all()
    assert (await grove.states())["f"] == "completed"
    grove.shard.now += 130_000
    assert await grove.shard.sweep(*_SWEPT) == 1
    left = [each for each in await grove.keys() if each.startswith("job:")]
    assert len(left) == 701 - 200
    assert await grove.do_chores() >= 2
    assert await grove.keys() == []
    assert await grove.shard.members("deadlines", "") == []


async def test_nested_trees_are_removed_in_steps_too(grove: Grove) -> None:
    await grove.add(make_tree({"a": ""}))
    await grove.claim()
    nests = [Member(f"n{i}", ROOTS, body="{}", is_root=True) for i in range(3)]
    await grove.spawn("f/a", *nests)
    for each in await grove.claim():
        await grove.spawn(each, *[Member(f"{each}/m{i}", STEPS) for i in range(150)], tree=each)
    await grove.run_all()
    await grove.do_chores()
    await grove.run_all()
    assert (await grove.states())["f"] == "completed"
    grove.shard.now += 130_000
    await grove.shard.sweep(*_SWEPT)
    await grove.do_chores()
    assert await grove.keys() == []
