"""roots.lua: pages of roots, of all queues in one row, of which each root stands on one."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import Shard
from drivers.tree_driver import ROOTS, TreeDriver, make_tree

from eventbus.store.calls.tree_store import RootPlace, RootRow
from eventbus.store.scripting.scripts import load_script

_ENDED = ("completed", "failed", "cancelled")


async def _pages(
    shard: Shard, *kinds: str, limit: int = 2, queues: tuple[str, ...] = (ROOTS,)
) -> list[RootRow]:
    """All pages, one after the other."""
    found: list[RootRow] = []
    after: RootPlace | None = None
    while page := await shard.store.trees.root_page(queues, kinds, after=after, limit=limit):
        assert len(page) <= limit
        found += page
        after = RootPlace(page[-1].at_ms, page[-1].id)
    return found


async def _add(driver: TreeDriver, *names: str) -> None:
    for first in range(0, len(names), 50):
        await driver.add_alone(*(make_tree({}, root=name) for name in names[first : first + 50]))


async def test_the_script_gets_what_its_header_says(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    async def note(_name: str, arguments: list[Any], **_: Any) -> list[Any]:
        sent.extend(arguments)
        return []

    monkeypatch.setattr(shard.store.trees._caller, "script", note)
    await shard.store.trees.root_page(["queue"] * 2, ["kinds"], after=RootPlace(1, "id"), limit=7)
    head = ["time", "id", "limit", "kinds", "queues"]
    assert load_script("roots").fields == {"head": head, "queues": ["queue"]}
    assert sent == [1, "id", 7, "kinds", 2, "queue", "queue"]


async def test_open_roots_of_one_moment_stand_once_each_whatever_the_size_of_a_page(
    driver: TreeDriver,
) -> None:
    shard = driver.shard
    names = [f"r{n:03}" for n in range(250)]
    await _add(driver, *names[:248])
    shard.now += 1
    await _add(driver, *names[248:])
    wanted = sorted(names, reverse=True)
    for limit in (1, 7, 1000):
        assert [row.id for row in await _pages(shard, "open", limit=limit)] == wanted
    assert await _pages(shard, *_ENDED) == []


async def test_ended_roots_stand_by_their_ends_and_a_later_end_moves_no_page(driver: TreeDriver) -> None:
    shard = driver.shard
    await _add(driver, "a", "b", "c", "d", "e")
    assert len(await driver.claim()) == 5
    shard.now += 10
    await driver.end("completed", "b")
    shard.now += 10
    for job in ("a", "d"):
        await driver.end("failed", job, text="{}")
        await driver.undo(job)
    shard.now += 10
    await driver.end("completed", "c")
    first = await shard.store.trees.root_page([ROOTS], _ENDED, after=None, limit=2)
    assert [(row.id, row.kind, row.is_there) for row in first] == [("c", "completed", 1), ("d", "failed", 1)]
    shard.now += 10
    await driver.end("completed", "e")
    after = RootPlace(first[-1].at_ms, first[-1].id)
    rest = await shard.store.trees.root_page([ROOTS], _ENDED, after=after, limit=9)
    assert [row.id for row in rest] == ["a", "b"]
    assert [row.id for row in await _pages(shard, *_ENDED)] == ["e", "c", "d", "a", "b"]


async def test_completed_roots_of_one_moment_stand_once_each(driver: TreeDriver) -> None:
    shard = driver.shard
    names = [f"r{n:03}" for n in range(230)]
    await _add(driver, *names)
    await driver.run()
    assert [row.id for row in await _pages(shard, "completed", limit=3)] == sorted(names, reverse=True)


async def test_a_root_whose_record_is_gone_is_told_as_such_and_leads_on(driver: TreeDriver) -> None:
    shard = driver.shard
    await _add(driver, "a", "b")
    await driver.run()
    await shard.command("DEL", shard.key("job", "b"))
    assert [(row.id, row.is_there) for row in await _pages(shard, "completed", limit=1)] == [
        ("b", 0),
        ("a", 1),
    ]


@pytest.mark.parametrize("kind", ["open", *_ENDED, "leaving"])
async def test_a_foreign_value_in_the_place_of_a_set_hides_that_set_alone(
    driver: TreeDriver, kind: str
) -> None:
    shard = driver.shard
    await _add(driver, "a")
    await shard.command("SET", shard.key("roots" if kind == "open" else kind, "other"), "x")
    found = await _pages(shard, *dict.fromkeys(("open", kind)), queues=("other", ROOTS))
    assert [row.id for row in found] == ["a"]
