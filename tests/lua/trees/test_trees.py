"""Trees at work: exact under repeated calls, and bounded work in each call however large they are."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from drivers.shards import Shard, settle, turn_queue
from drivers.tree_driver import ROOTS, STEPS, TreeDriver, make_tree, pieces_of

from eventbus.emit.job_tree import Member, rows_of

_MANY = 1000
_BOUND = 6000
"""Commands of one call that the server runs at most: it tells, sweeps, opens and forgets some hundreds of
jobs.
"""


class _Meter:
    """Counts the commands that the server ran."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.most = 0

    async def reset(self) -> None:
        await self._shard.command("CONFIG", "RESETSTAT")

    async def read(self) -> None:
        """Note the commands since the last reset, and reset."""
        info: str = await self._shard.command("INFO", "commandstats")
        counts = {name: int(count) for name, count in re.findall(r"cmdstat_([\w|]+):calls=(\d+)", info)}
        self.most = max(self.most, sum(counts.values()))
        await self.reset()


@pytest.fixture
async def meter(shard: Shard) -> AsyncIterator[_Meter]:
    """After the test: no call was over the bound."""
    meter = _Meter(shard)
    await meter.reset()
    yield meter
    assert 0 < meter.most <= _BOUND


@pytest.fixture
def metered(driver: TreeDriver, meter: _Meter, monkeypatch: pytest.MonkeyPatch) -> TreeDriver:
    """A driver whose script calls are measured one by one."""
    caller = driver.shard.store._caller  # pyright: ignore[reportPrivateUsage]
    script = caller.script

    async def measured(*arguments: Any, **named: Any) -> Any:
        answer = await script(*arguments, **named)
        await meter.read()
        return answer

    monkeypatch.setattr(caller, "script", measured)
    return driver


async def _run_through(driver: TreeDriver, *, batch: int = 200) -> list[str]:
    """Complete everything in turns as a worker takes them: the last ones are settled where the next are
    claimed.
    """
    order: list[str] = []
    answer = await driver.turn(want=batch)
    idle = 0
    while idle < 20:
        order += [each.id for each in answer.claims]
        rows = [settle(*driver.held.pop(each.id)) for each in answer.claims]
        answer = await driver.turn(*rows, want=batch)
        is_over = not answer.claims and not 0 <= answer.next_due <= driver.shard.now
        idle = idle + 1 if is_over else 0
        if is_over and not await driver.shard.members("ready", STEPS):
            break
    return order


async def test_a_fan_out_of_a_thousand(metered: TreeDriver) -> None:
    names = [f"m{i}" for i in range(_MANY)]
    await metered.add(make_tree({"a": "", **dict.fromkeys(names, "a")}), 150)
    order = await _run_through(metered)
    assert order == ["f/a", *[f"f/{each}" for each in names], "f"]
    assert (await metered.look(limit=0)).root["state"] == "completed"
    assert [each.id for each in (await metered.look(listed="done", limit=2000)).members] == order[:-1]


async def test_a_fan_in_of_a_thousand(metered: TreeDriver) -> None:
    names = [f"m{i}" for i in range(_MANY)]
    needs = {**dict.fromkeys(names, ""), "z": " ".join(names)}
    tree = make_tree(needs)
    for chunk in pieces_of(tree, 150):
        await metered.send(chunk)
    order = await _run_through(metered)
    assert order == [*[f"f/{each}" for each in names], "f/z", "f"]


async def test_a_thousand_leaves_are_opened_in_steps(metered: TreeDriver) -> None:
    names = [f"m{i}" for i in range(_MANY)]
    await metered.add(make_tree(dict.fromkeys(names, "")), 150)
    opened = await metered.shard.command("LLEN", metered.shard.key("ready", STEPS))
    assert opened < _MANY
    order = await _run_through(metered)
    assert sorted(order) == sorted(["f", *[f"f/{each}" for each in names]])
    assert order[-1] == "f"


@pytest.mark.parametrize("cause", ["failed", "cancelled"])
async def test_a_thousand_members_are_swept_in_steps(metered: TreeDriver, cause: str) -> None:
    names = [f"m{i}" for i in range(_MANY)]
    await metered.add(make_tree({"a": "", **dict.fromkeys(names, "a")}), 150)
    await metered.claim()
    if cause == "failed":
        await metered.end("failed", "f/a", text="{}")
    else:
        assert await metered.cancel() == "asked"
        await metered.end("cancelled", "f/a", text="{}")
    states = [await metered.shard.state(f"f/{each}") for each in names]
    assert "waiting-children" in states
    assert await metered.do_chores() > 3
    await metered.undo(cause=cause)
    assert {await metered.shard.state(f"f/{each}") for each in names} == {"cancelled"}


async def test_a_thousand_dependents_that_fail_are_told_in_steps(metered: TreeDriver) -> None:
    names = [f"m{i}" for i in range(_MANY)]
    await metered.add(
        make_tree(
            {"a": "", **dict.fromkeys(names, "a"), "z": " ".join(names)}, ons={"z": "ignore"}, on="fail"
        ),
        150,
    )
    await metered.claim()
    await metered.end("failed", "f/a", text="{}")
    await metered.do_chores()
    assert {await metered.shard.state(f"f/{each}") for each in names} == {"failed"}
    assert await _run_through(metered) == ["f/z", "f"]


async def test_a_thousand_children_are_added_and_waited_for(metered: TreeDriver) -> None:
    await metered.add(make_tree({"a": ""}))
    await metered.claim()
    children = [Member(f"f/m{i}", STEPS) for i in range(_MANY)]
    for first in range(0, _MANY, 150):
        part = children[first : first + 150]
        rows, edges = rows_of(part, root="f", parent="f/a", awaited=[each.id for each in part])
        is_last = first + 150 >= _MANY
        await metered.checkpoint("f/a", rows=rows, edges=edges, opens=is_last, waits=is_last)
    order = await _run_through(metered)
    assert sorted(order[:_MANY]) == sorted(each.id for each in children)
    assert order[_MANY:] == ["f/a", "f"]


async def test_ids_may_be_as_long_as_the_library_takes_them(driver: TreeDriver) -> None:
    root = "й" * 512
    await driver.add(make_tree({"a": "", "b": "a"}, root=root))
    assert await driver.run_all() == [f"{root}/a", f"{root}/b", root]
    assert await driver.done(root) == ["a", "b"]


async def test_what_went_wrong_is_found_again_in_the_edges(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a", "c": "a", "d": "b c"}))
    await driver.run_all()
    needs = {each.id: each.needs for each in (await driver.look()).members}
    assert needs == {"f/a": "f/b f/c", "f/b": "f/d", "f/c": "f/d", "f/d": "f"}


async def test_pages_of_a_look_end_with_the_outcome_that_fills_them(driver: TreeDriver) -> None:
    await driver.add(make_tree(dict.fromkeys("abcd", "")))
    await driver.claim()
    await driver.end("completed", *[f"f/{each}" for each in "abcd"], text='"' + "x" * 98 + '"')
    page = await driver.look(max_bytes=150)
    assert [each.id for each in page.members] == ["f/a", "f/b"]
    page = await driver.look(first=2, limit=1, max_bytes=0)
    assert [(each.id, each.text) for each in page.members] == [("f/c", "")]
    assert (await driver.look("none")).root == {}


@pytest.mark.parametrize("size", [2, 100])
async def test_two_workers_never_run_the_same_member(driver: TreeDriver, size: int) -> None:
    await driver.add(make_tree({"a": "", "b": "", "c": "a b", "d": "a b", "e": "c d"}), size)
    ran: list[str] = []
    for _ in range(6):
        first = await driver.claim(want=1, worker="w")
        second = await driver.claim(want=5, worker="x")
        ran += first + second
        await driver.end("completed", *second, worker="x")
        await driver.end("completed", *first, worker="w")
    assert ran == [*[f"f/{each}" for each in "abcde"], "f"]


async def test_a_member_that_is_retried_frees_nobody(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    for attempt in (1, 2):
        assert await driver.claim() == ["f/a"]
        assert driver.held["f/a"][0].attempts == attempt - 1
        await driver.end("delayed", "f/a", text="{}", attempts=attempt, delay=100)
        assert await driver.claim() == []
        driver.shard.now += 100
    assert await driver.lose() == []
    assert await driver.run_all() == ["f/a", "f/b", "f"]


async def test_a_member_that_is_rescued_runs_again_and_counts_once(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.claim()
    token = driver.held["f/a"][1]
    assert await driver.lose() == ["f/a rescued"]
    late = await driver.turn(settle(*driver.held["f/a"]), want=0)
    assert (late.lost, token) == (["f/a"], driver.held["f/a"][1])
    assert await driver.claim() == ["f/a"]
    await driver.end("completed", "f/a")
    assert await driver.done() == ["a"]
    assert await driver.run_all() == ["f/b", "f"]


async def test_a_member_that_stalls_too_often_stops_the_tree(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.claim()
    assert await driver.lose(max_stalls=0) == ["f/a failed"]
    assert (await driver.look()).root["stopper"] == "f/a"
    await driver.undo()


async def test_what_a_settle_frees_is_claimed_in_the_same_call(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a", "c": "b"}))
    (job,) = await driver.claim()
    for following in ("f/b", "f/c", "f"):
        answer = await driver.end("completed", job, want=1)
        assert [each.id for each in answer.claims] == [following]
        job = following
    answer = await driver.end("completed", "f", want=1, queues=(turn_queue(STEPS), turn_queue(ROOTS)))
    assert (answer.claims, await driver.outcome("f")) == ([], ("completed", "1"))
