"""What stands beside a damaged record, and records that a later release has marked: nothing is lost or left
behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from drivers.shards import LEASE, QUEUE, Shard, row, settle, turn_queue
from drivers.tree_driver import TreeDriver, make_tree, pieces_of

from eventbus.store.scripting.script_rows import SweepQueue

_LARGE = '"' + "b" * 300 + '"'
_DAY = 86_400_000
_KINDS = ("job", "more", "body", "result", "progress", "log", "waiters", "checkpoints")


async def _kinds(shard: Shard, job: str) -> list[str]:
    return [kind for kind in _KINDS if await shard.command("EXISTS", shard.key(kind, job))]


async def _mark(shard: Shard, job: str) -> None:
    """Set a flag that belongs to a later release."""
    name = shard.key("job", job)
    flags = await shard.command("GETRANGE", name, 1, 1)
    await shard.command("SETRANGE", name, 1, chr(ord(flags) | 64))


# what stands beside a record


async def test_a_job_that_was_set_apart_goes_with_its_body(shard: Shard) -> None:
    await shard.add(row("a", body=_LARGE))
    await shard.command("SETRANGE", shard.key("job", "a"), 0, "*")
    await shard.turn()
    assert await shard.members("failed") == ["a"]
    shard.now += 8 * _DAY
    assert await shard.sweep(SweepQueue(QUEUE, 0, 0, 0, 0)) == 1
    assert await _kinds(shard, "a") == []


async def test_a_job_that_was_set_apart_goes_with_the_outcome_that_it_was_to_have(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn()
    await shard.cancel("a")
    await shard.command("HSET", shard.key("more", "a"), "stalls", "junk")
    shard.now += LEASE
    await shard.rescue()
    assert await shard.members("failed") == ["a"]
    shard.now += 8 * _DAY
    assert await shard.sweep(SweepQueue(QUEUE, 0, 0, 0, 0)) == 1
    assert await _kinds(shard, "a") == []


@pytest.mark.parametrize("text", ["j\0nk", "\x31\x00", "", "!"])
async def test_a_record_that_is_damaged_after_the_end_goes_with_all_that_stands_beside_it(
    shard: Shard, text: str
) -> None:
    await shard.add(row("a", body=_LARGE))
    await shard.run("completed")
    await shard.command("SET", shard.key("job", "a"), text)
    shard.now += 8 * _DAY
    assert await shard.sweep(SweepQueue(QUEUE, 0, 0, 0, 0)) == 1
    assert await _kinds(shard, "a") == []


@pytest.mark.parametrize("state", ["completed", "failed", "delayed", "waiting", "parked"])
async def test_a_foreign_value_where_further_fields_would_stand_harms_no_settle(
    shard: Shard, state: str
) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    await shard.command("SET", shard.key("more", "a"), "junk")
    first, second = answer.claims
    ends = [settle(first, answer.token, state, "{}", attempts=1, delay=5), settle(second, answer.token)]
    assert (await shard.turn(*ends, want=0)).lost == []
    assert [await shard.state(each) for each in "ab"] == [state, "completed"]
    await shard.command("DEL", shard.key("more", "a"))


async def test_a_foreign_value_where_further_fields_would_stand_harms_no_rescue_and_no_cancel(
    shard: Shard,
) -> None:
    await shard.add(row("a"), row("b"))
    await shard.turn()
    await shard.command("SET", shard.key("more", "a"), "junk")
    shard.now += LEASE
    await shard.rescue()
    assert await shard.members("ready") == ["a", "b"]
    await shard.command("DEL", shard.key("more", "a"))
    await shard.command("SET", shard.key("more", "a"), "junk")
    assert await shard.cancel("b") == ["ended"]
    await shard.command("DEL", shard.key("more", "a"))


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_a_root_whose_further_fields_are_gone_is_set_apart(driver: TreeDriver, end: str) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.claim()
    await driver.shard.command("DEL", driver.shard.key("more", "f"))
    await driver.end(end, "f/a", text="{}")
    for _ in range(5):
        for job in await driver.claim():
            await driver.end("completed", job)
    assert await driver.shard.state("f") == "failed"


async def test_a_dependent_that_says_no_more_of_which_tree_it_is_harms_no_turn(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.claim()
    await driver.shard.command("SETRANGE", driver.shard.key("job", "f/b"), 1, "\0")
    await driver.end("failed", "f/a", text="{}")
    assert await driver.shard.state("f/a") == "failed"


# records of a later release


@pytest.mark.parametrize("end", ["completed", "failed"])
@pytest.mark.parametrize("job", ["f", "f/b"])
async def test_who_waits_in_a_tree_may_be_of_a_later_release(driver: TreeDriver, job: str, end: str) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    await driver.claim()
    await _mark(driver.shard, job)
    await driver.end(end, "f/a", text="{}")
    await driver.claim()
    marked = await driver.shard.record(job)
    assert "StoreCorrupt" not in str(marked)
    assert marked["state"] in ("parked", "waiting-children", "cancelled")


async def test_a_leaf_of_a_later_release_is_opened(driver: TreeDriver) -> None:
    first, second = pieces_of(make_tree({"a": "", "b": ""}), 2)
    await driver.send(first)
    await _mark(driver.shard, "f/a")
    await driver.send(second)
    assert await driver.claim() == ["f/b"]
    assert await driver.shard.state("f/a") == "parked"


async def test_the_deadline_of_a_root_of_a_later_release_stops_it(driver: TreeDriver) -> None:
    await driver.add(make_tree({"a": "", "b": ""}, timeout=60.0))
    await driver.claim()
    await _mark(driver.shard, "f")
    driver.shard.now += 60_000
    await driver.turn(want=0)
    assert (await driver.shard.record("f"))["stop"] == "timeout"


_Lose = Callable[[Shard, str], Awaitable[object]]


async def _rescue(shard: Shard, _: str) -> None:
    shard.now += LEASE
    await shard.rescue()


@pytest.mark.parametrize(
    "lose", [_rescue, lambda shard, token: shard.renew(calls=(1, 0))], ids=["rescued", "given back"]
)
async def test_a_held_job_that_a_later_release_marked_is_parked(shard: Shard, lose: _Lose) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await _mark(shard, "a")
    assert (await shard.turn(settle(answer.claims[0], answer.token, "failed", "{}"), want=0)).lost == ["a"]
    await lose(shard, answer.token)
    await shard.turn()
    assert await shard.members("parked") == ["a"]
    assert await shard.held() == []
    assert await shard.cancel("a") == ["ended"]


async def test_a_parked_job_of_a_later_release_is_cancelled_with_its_group(shard: Shard) -> None:
    group = f"{QUEUE}@g"
    await shard.announce("p", QUEUE, "g")
    await shard.add(row("a"))
    await _mark(shard, "a@g")
    await shard.turn(queues=[turn_queue(group)])
    assert await shard.members("parked", group) == ["a@g"]
    assert await shard.script("ungroup", [shard.now, QUEUE, "g", 1, 100, 1000, 1000, 1000, "call", "{}"]) == [
        *("done", 1, 1)
    ]
    assert await shard.state("a@g") == "cancelled"


@pytest.mark.parametrize("code", [0, 4, 5, 6])
async def test_a_job_of_a_format_to_come_that_cannot_be_parked_harms_no_claim(
    shard: Shard, planted: set[str], code: int
) -> None:
    planted.add(shard.key("parked", QUEUE))
    await shard.command("SET", shard.key("parked", QUEUE), "junk")
    await shard.add(row("a"), row("b"))
    await shard.command("SETRANGE", shard.key("job", "a"), 0, chr(0x30 + code))
    assert [each.id for each in (await shard.turn()).claims] == ["b"]


async def test_a_join_changes_no_record_of_a_format_to_come(shard: Shard) -> None:
    await shard.add(row("a", key="k", print="p"))
    await shard.command("SETRANGE", shard.key("job", "a"), 0, "\x30\x00")
    before = await shard.command("GET", shard.key("job", "a"))
    await shard.store.look("em", ["a"], join=True)
    assert await shard.command("GET", shard.key("job", "a")) == before
