"""checkpoint.lua: saving under the lease, children and the wait for them in one call, the stop."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, row, turn_queue
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree

from eventbus.emit.job_tree import Member, rows_of
from eventbus.store.scripting.script_rows import SaveRow, SweepQueue


def _child(name: str, **given: Any) -> Member:
    return Member(f"f/{name}", STEPS, **given)


@pytest.fixture
async def step(driver: TreeDriver) -> TreeDriver:
    """A driver in which `f/a` runs, and `f/b` waits for it."""
    await driver.add(make_tree({"a": "", "b": "a"}))
    assert await driver.claim() == ["f/a"]
    return driver


async def test_what_a_job_saves_is_there_by_name(step: TreeDriver) -> None:
    large = "x" * 100_000
    assert await step.checkpoint("f/a", saves=[SaveRow("one", "1"), SaveRow("large", large)]) == "ok"
    assert await step.checkpoint("f/a", saves=[SaveRow("one", "2")]) == "ok"
    assert (await step.look("f/a")).saved == {"one": "2", "large": large}
    assert await step.checkpoint("f/a") == "ok"
    await step.end("completed", "f/a")
    assert (await step.look("f/a")).saved == {"one": "2", "large": large}


async def test_nothing_is_saved_without_the_lease(step: TreeDriver) -> None:
    rows, edges = rows_of([_child("c")], root="f", parent="f/a", awaited=["f/c"])
    given: dict[str, Any] = {
        "saves": [SaveRow("x", "y")], "rows": rows, "edges": edges, "opens": True, "waits": True,
    }  # fmt: skip
    token = step.held["f/a"][1]
    before = await step.keys()
    assert await step.checkpoint("f/a", token="w:999", **given) == "lost"
    assert await step.checkpoint("none", token=token, **given) == "lost"
    assert await step.lose() == ["f/a rescued"]
    assert await step.checkpoint("f/a", token=token, **given) == "lost"
    assert await step.claim(worker="x") == ["f/a"]
    assert await step.checkpoint("f/a", token=token, **given) == "lost"
    after = await step.keys()
    assert sorted(set(after) - set(before)) == ["log:f/a", "more:f/a"]  # the stall
    assert (await step.look("f/a")).saved == {}


async def test_a_job_that_waits_for_children_runs_again_when_all_have_ended(step: TreeDriver) -> None:
    assert await step.spawn("f/a", _child("c"), _child("d"), saves=[SaveRow("x", "y")]) == "waiting"
    record = await step.shard.record("f/a")
    assert record["state"] == "waiting-children"
    assert await step.shard.held() == []
    assert await step.run() == ["f/c", "f/d"]
    assert await step.claim() == ["f/a"]
    claim = step.held["f/a"][0]
    assert (claim.attempts, claim.stalls) == (0, 0)
    await step.end("completed", "f/a")
    assert await step.run_all() == ["f/b", "f"]
    assert await step.done() == ["c", "d", "a", "b"]


async def test_a_wait_gives_the_lease_up(step: TreeDriver) -> None:
    token = step.held["f/a"][1]
    await step.spawn("f/a", _child("c"))
    assert await step.shard.renew(("f/a", token)) == ["f/a"]
    assert await step.lose() == []
    assert await step.claim() == ["f/c"]
    await step.end("completed", "f/c")
    assert await step.checkpoint("f/a", token=token, waits=True) == "waiting"  # that very call again
    assert await step.claim() == ["f/a"]
    assert await step.checkpoint("f/a", token=token, waits=True) == "lost"


async def test_an_existing_child_is_no_second_one(step: TreeDriver) -> None:
    assert await step.spawn("f/a", _child("c"), waits=False) == "ok"
    assert await step.lose() == ["f/a rescued"]
    assert await step.claim(want=1) == ["f/a"]  # rescued ones keep their place
    assert await step.spawn("f/a", _child("c"), _child("d")) == "waiting"
    assert await step.run() == ["f/c", "f/d"]
    assert await step.run_all() == ["f/a", "f/b", "f"]
    assert [each.id for each in (await step.look()).members] == ["f/a", "f/b", "f/c", "f/d"]


async def test_children_that_ended_before_the_wait_are_not_waited_for(step: TreeDriver) -> None:
    assert await step.spawn("f/a", _child("c"), _child("d"), waits=False) == "ok"
    assert await step.claim(worker="x") == ["f/c", "f/d"]
    await step.end("completed", "f/c", "f/d", worker="x")
    assert await step.claim() == []
    assert await step.checkpoint("f/a", waits=True) == "waiting"
    assert await step.run_all() == ["f/a", "f/b", "f"]


async def test_a_wait_for_nothing_runs_again_at_once(step: TreeDriver) -> None:
    assert await step.checkpoint("f/a", waits=True) == "waiting"
    assert await step.run_all() == ["f/a", "f/b", "f"]


async def test_children_added_in_pieces_start_with_the_last_one(step: TreeDriver) -> None:
    children = [_child(f"c{i}") for i in range(6)]
    for first in (0, 2, 4):
        part = children[first : first + 2]
        rows, edges = rows_of(part, root="f", parent="f/a", awaited=[each.id for each in children])
        is_last = first == 4
        word = await step.checkpoint("f/a", rows=rows, edges=edges, opens=is_last, waits=is_last)
        assert word == ("waiting" if is_last else "ok")
        assert bool(await step.shard.members("ready", STEPS)) == is_last
    assert sorted(await step.run()) == [each.id for each in children]
    assert await step.run_all() == ["f/a", "f/b", "f"]
    assert not [each for each in await step.keys() if each.startswith(("leaves", "needs"))]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_a_child_may_need_what_has_ended_before(step: TreeDriver, state: str) -> None:
    await step.spawn("f/a", _child("k", up="ignore"), waits=False)
    await step.claim(worker="x")
    await step.end(state, "f/k", text="{}", worker="x")
    await step.spawn("f/a", _child("c", needs=["f/k"]), _child("d", needs=["f/k", "f/c"]))
    assert await step.run_all() == ["f/c", "f/d", "f/a", "f/b", "f"]


async def test_a_child_that_needs_what_has_failed_stops_the_tree(step: TreeDriver) -> None:
    await step.spawn("f/a", _child("k", up="ignore"), waits=False)
    await step.claim(worker="x")
    await step.end("failed", "f/k", text="{}", worker="x")
    await step.shard.command("HDEL", step.shard.key("more", "f/k"), "up")
    await step.shard.command(
        "SETRANGE", step.shard.key("job", "f/k"), 1, " "
    )  # a member without further fields
    await step.spawn("f/a", _child("c", needs=["f/k"]))
    assert (await step.look()).root["stopper"] == "f/k"
    await step.undo()


async def test_children_may_need_each_other_and_be_delayed(step: TreeDriver) -> None:
    await step.spawn("f/a", _child("c", delay=0.5), _child("d", needs=["f/c"]))
    assert await step.claim() == []
    step.shard.now += 500
    assert await step.run_all() == ["f/c", "f/d", "f/a", "f/b", "f"]


async def test_a_plain_job_may_save_too_and_leaves_nothing(driver: TreeDriver) -> None:
    await driver.shard.add(row("p"))
    queues = (turn_queue(keep_completed=0, age_completed=0),)
    await driver.turn(queues=queues)
    assert await driver.checkpoint("p", saves=[SaveRow("x", "y")]) == "ok"
    await driver.end("completed", "p", queues=queues)
    driver.shard.now += 200_000
    await driver.shard.sweep(SweepQueue(QUEUE, 0, 0, 0, 0))
    assert await driver.keys() == []


# stops


@pytest.mark.parametrize("waits", [True, False])
async def test_nothing_is_added_to_a_tree_that_stops(step: TreeDriver, waits: bool) -> None:
    await step.cancel()
    assert await step.spawn("f/a", _child("c"), waits=waits, saves=[SaveRow("x", "y")]) == "stopping"
    assert await step.checkpoint("f/a", waits=True) == "stopping"
    assert (await step.look("f/a")).saved == {}
    assert await step.states() == {"f": "waiting-children", "a": "active", "b": "cancelled"}
    assert await step.checkpoint("f/a", saves=[SaveRow("x", "y")]) == "ok"  # it still runs, and may save
    await step.end("completed", "f/a")
    assert await step.done() == ["a"]
    await step.undo(cause="cancelled")


async def test_nothing_is_added_where_a_tree_around_it_stops(step: TreeDriver) -> None:
    await step.spawn("f/a", Member("n", ROOTS, body="{}", is_root=True, on="wake"))
    await step.claim()
    await step.shard.change("f", stop="cancelled")  # the sweep did not come yet
    assert await step.spawn("n", Member("n/x", STEPS), tree="n") == "stopping"


async def test_a_root_that_undoes_adds_nothing_and_may_save(step: TreeDriver) -> None:
    await step.end("failed", "f/a", text="{}")
    await step.claim()
    assert await step.spawn("f", _child("c"), acknowledges=True) == "stopping"
    assert await step.checkpoint("f", acknowledges=True, saves=[SaveRow("x", "y")]) == "ok"
    assert await step.spawn("f", _child("c")) == "stopping"
    step.shard.now += LEASE
    await step.shard.rescue()
    assert await step.claim() == ["f"]
    assert step.held["f"][0].stop == "failed"
    assert (await step.look()).saved == {"x": "y"}
    await step.end("failed", "f", text="{}")
    assert (await step.states())["f"] == "failed"


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_what_a_root_settles_after_it_acknowledged_is_the_end(step: TreeDriver, state: str) -> None:
    await step.end("failed", "f/a", text="{}")
    await step.claim()
    await step.checkpoint("f", acknowledges=True)
    await step.end(state, "f", text='"end"')
    assert await step.outcome("f") == (state, '"end"')
    assert await step.claim() == []


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_what_it_settles_without_is_not(step: TreeDriver, state: str) -> None:
    await step.end("failed", "f/a", text="{}")
    await step.claim()
    await step.end(state, "f", text='"end"')
    assert await step.claim() == ["f"]
    assert step.held["f"][0].stop == "failed"


async def test_a_root_that_does_not_know_of_the_stop_cannot_acknowledge_it(step: TreeDriver) -> None:
    await step.spawn("f/a", Member("n", ROOTS, body="{}", is_root=True, on="wake"))
    await step.claim()
    await step.spawn("n", _child("x"), tree="n", waits=False)
    assert await step.claim(worker="x") == ["f/x"]
    first = step.held["n"]
    assert await step.cancel("n") == "asked"
    again = await step.shard.turn(call=step.shard.calls("w"), queues=step.queues)
    assert [each.stop for each in again.claims] in ([], [""])  # its answer was lost: the claim knew of none
    assert await step.checkpoint("n", acknowledges=True) == "stopping"
    assert step.held["n"] == first
    await step.end("completed", "n")
    assert await step.claim() == []  # `f/x` still runs
    await step.end("completed", "f/x", worker="x")
    await step.undo("n", cause="cancelled")


async def test_to_acknowledge_where_nothing_stops_changes_nothing(step: TreeDriver) -> None:
    assert await step.checkpoint("f/a", acknowledges=True) == "ok"
    assert "acked" not in await step.shard.record("f/a")
