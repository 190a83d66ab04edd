"""Rows that supersede, and come late: a call that is repeated cancels nothing that is newer
(`passed.lua`).
"""

from __future__ import annotations

import json

import pytest
from drivers.shards import QUEUE, Shard, row
from drivers.tree_driver import TreeDriver, make_tree

from eventbus.store.calls.tree_store import TreeVerdict
from eventbus.store.scripting.script_rows import DEBOUNCE, JOIN, SUPERSEDE, AddRow, AddVerdict

_OWN, _LATER, _OTHER = "0-em-00000001", "0-em-00000002", "0-other-00000001"
_WINDOW = 120_000


def _newest(job: str, **given: object) -> AddRow:
    return row(job, key="k", print=job, meeting=SUPERSEDE, keep="0,0", **given)


async def _forget(shard: Shard, job: str) -> None:
    """The retention of a job is over: its record goes, and nothing of it is left but what its key says."""
    shard.now += _WINDOW + 1001
    await shard.turn(want=0, worker="other", queues=())
    assert await shard.state(job) is None


async def _states(shard: Shard, *jobs: str) -> list[str | None]:
    return [await shard.state(each) for each in jobs]


@pytest.mark.parametrize("ended", ["cancelled", "completed", "failed"])
async def test_a_repeat_whose_job_is_gone_leaves_the_job_that_came_after_it(shard: Shard, ended: str) -> None:
    first = _newest(_OWN)
    await shard.add(first)
    if ended != "cancelled":
        await shard.run(ended)
    await shard.add(_newest(_OTHER))
    await _forget(shard, _OWN)
    assert await shard.add(first) == [AddVerdict(0, "joined", _OWN, "unlisted", "")]
    assert await _states(shard, _OWN, _OTHER) == [None, "waiting"]


async def test_it_leaves_one_that_anybody_made_when_the_key_was_free_again(shard: Shard) -> None:
    first = _newest(_OWN)
    await shard.add(first)
    await shard.run("failed")
    await shard.add(row(_OTHER, key="k", print="o", meeting=JOIN))
    await _forget(shard, _OWN)
    assert [each.word for each in await shard.add(first)] == ["joined"]
    assert await _states(shard, _OWN, _OTHER) == [None, "waiting"]


async def test_all_that_came_before_are_known_and_not_the_last_one_alone(shard: Shard) -> None:
    rows = [_newest(f"0-em{i}-00000001") for i in range(20)]
    for each in rows:
        await shard.add(each)
    await _forget(shard, rows[0].id)
    for each in rows[:-1]:
        assert [verdict.state for verdict in await shard.add(each)] == ["unlisted"]
    assert await shard.members("ready") == [rows[-1].id]


@pytest.mark.parametrize("meeting", [JOIN, SUPERSEDE])
async def test_a_row_that_a_later_one_of_its_emitter_has_overtaken_is_the_one_that_is_cancelled(
    shard: Shard, meeting: int
) -> None:
    """Its call was lost, and is made again behind that of the later one."""
    await shard.add(row(_LATER, key="k", print="p", meeting=meeting))
    (verdict,) = await shard.add(_newest(_OWN))
    assert verdict[:4] == (0, "joined", _OWN, "cancelled")
    assert json.loads(verdict.text)["message"] == "superseded by a later emission, which has the same key"
    assert await _states(shard, _OWN, _LATER) == [None, "waiting"]


async def test_one_that_is_overtaken_is_known_also_when_others_came_since(shard: Shard) -> None:
    for job in (_LATER, _OTHER):
        await shard.add(_newest(job))
    assert [each.state for each in await shard.add(_newest(_OWN))] == ["cancelled"]
    assert await shard.members("ready") == [_OTHER]


async def test_what_was_merged_before_is_late_behind_one_that_supersedes(shard: Shard) -> None:
    def debounced(job: str) -> AddRow:
        return row(job, key="k", print=job, meeting=DEBOUNCE, delay=5_000)

    for job in (_OTHER, _OWN):
        await shard.add(debounced(job))
    await shard.add(_newest("0-third-00000001"))
    assert [each.job for each in await shard.add(debounced(_OWN))] == ["0-third-00000001"]
    assert [each.body for each in (await shard.turn()).claims] == ['{"d":"0-third-00000001"}']


async def test_a_later_row_of_the_same_emitter_supersedes_as_ever(shard: Shard) -> None:
    for job in (_OWN, _LATER):
        assert await shard.add(_newest(job)) == []
    assert await _states(shard, _OWN, _LATER) == ["cancelled", "waiting"]


async def test_each_group_leaves_the_newer_job(shard: Shard) -> None:
    await shard.announce(group="g")
    first = _newest(_OWN)
    await shard.add(first)
    await shard.add(_newest(_OTHER))
    await _forget(shard, _OWN)
    assert [each.job for each in await shard.add(first)] == [_OWN]
    assert await _states(shard, _OTHER, f"{_OTHER}@g", f"{_OWN}@g") == ["waiting", "waiting", None]


@pytest.mark.parametrize("way", ["alone", "whole"])
async def test_a_tree_that_is_repeated_leaves_the_newer_one(shard: Shard, way: str) -> None:
    """Ids of trees do not rise: only the very same one is late."""
    driver = TreeDriver(shard, repeats=False)

    async def add(root: str) -> TreeVerdict:
        tree = make_tree(
            {} if way == "alone" else {"a": ""}, root=root, key="k", print=root, meeting=SUPERSEDE
        )
        return (await driver.add_alone(tree))[0] if way == "alone" else await driver.add(tree)

    for root in ("flow-9", "flow-5"):
        assert (await add(root)).word == "new"
    for kind in ("job", "more", "result", "members"):
        await shard.command("UNLINK", shard.key(kind, "flow-9"))
    assert await add("flow-9") == TreeVerdict("joined", "flow-9", "unlisted", "")
    assert await shard.state("flow-9") is None
    assert await shard.state("flow-5") in ("waiting", "waiting-children")


async def test_what_comes_when_its_key_is_forgotten_is_new(shard: Shard) -> None:
    """The window `key-forgotten`: it is over `key_ttl` late."""
    first = _newest(_OWN)
    for each in (first, _newest(_OTHER)):
        await shard.add(each)
    await shard.run("completed")
    await _forget(shard, _OWN)
    await shard.command("DEL", shard.key("key", f"{QUEUE}:k"))
    assert await shard.add(first) == []
    assert await shard.members("ready") == [_OWN]
