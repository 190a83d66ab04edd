"""Emissions that join an open job: the job lists their emitters, and tells a bounded number of them in one
call.
"""

from __future__ import annotations

import pytest
from drivers.shards import CANCELLED, Shard, add_queue, row

from eventbus.store.scripting.script_rows import AddVerdict

_MOST, _TOLD = 1000, 200
OPEN = AddVerdict(0, "joined", "a", "open", "")
UNLISTED = AddVerdict(0, "joined", "a", "unlisted", "")


async def _join(shard: Shard, emitter: str, job: str, *, reply: int = 1) -> list[AddVerdict]:
    return await shard.add(row(job, key="k", print="p", reply=reply), emitter=emitter)


async def _fill(shard: Shard, count: int) -> None:
    await shard.add(row("a", key="k", print="p"))
    await shard.command("SADD", shard.key("waiters", "a"), *(f"e{number}" for number in range(count)))
    await shard.change("a", joined=count)


async def _told(shard: Shard) -> set[str]:
    """Who has the outcome in its stream, of those whose streams are open."""
    root = shard.key("replies", "")
    names = await shard.command("KEYS", f"{root}*".replace("{", "[{]").replace("}", "[}]"))
    return {name.removeprefix(root) for name in names if await shard.replies(name.removeprefix(root))}


async def test_many_emissions_of_one_emitter_are_one_entry(shard: Shard) -> None:
    await shard.add(row("a", key="k", print="p"))
    for number in range(50):
        assert await _join(shard, "other", f"b{number}") == [OPEN]
    assert await shard.command("SMEMBERS", shard.key("waiters", "a")) == ["other"]


async def test_emissions_without_a_reply_are_not_listed(shard: Shard) -> None:
    await shard.add(row("a", key="k", print="p"))
    assert await _join(shard, "other", "b", reply=0) == [OPEN]
    assert await shard.command("EXISTS", shard.key("waiters", "a")) == 0


async def test_the_job_of_a_group_tells_nobody_who_joined(shard: Shard) -> None:
    await shard.store.groups.add("event.order.placed", "audit")
    await shard.add(row("a", key="k", print="p"))
    await _join(shard, "other", "b")
    assert await shard.command("EXISTS", shard.key("waiters", "a@audit")) == 0


async def test_who_finds_the_list_full_is_told_to_ask(shard: Shard) -> None:
    await _fill(shard, _MOST)
    assert await _join(shard, "e7", "b") == [OPEN], "it is on the list"
    assert await _join(shard, "late", "c") == [UNLISTED]
    assert await _join(shard, "late", "d", reply=0) == [OPEN]
    assert await shard.command("SCARD", shard.key("waiters", "a")) == _MOST
    (found,) = await shard.store.look("late", ["a"], join=True)
    assert (found.state, found.text) == ("waiting", "unlisted")
    (found,) = await shard.store.look("e7", ["a"], join=True)
    assert (found.state, found.text) == ("waiting", "")


async def test_the_place_of_an_unlisted_answer_is_that_of_its_row(shard: Shard) -> None:
    await _fill(shard, _MOST)
    queues = [add_queue(), add_queue("event.two", max_waiting=0)]
    rows = [row("x", queue=2), row("b", key="k", print="q"), row("y", queue=2), row("c", key="k", print="p")]
    verdicts = await shard.add(*rows, queues=queues, emitter="late")
    assert [(each.place, each.word, each.state) for each in verdicts] == [
        (0, "full", "unserved"),
        (1, "other", "unlisted"),
        (2, "full", "unserved"),
        (3, "joined", "unlisted"),
    ]


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_the_end_tells_200_and_chores_tell_the_others(shard: Shard, end: str) -> None:
    await _fill(shard, 450)
    everybody = {f"e{number}" for number in range(450)} | {"em"}
    for emitter in everybody:
        await shard.open_replies(emitter)
    if end == "cancelled":
        await shard.cancel("a")
    else:
        await shard.run(end, text="1")
    counts = [len(await _told(shard))]
    while len(await _told(shard)) < len(everybody):
        await shard.turn()
        counts.append(len(await _told(shard)))
    assert counts == [_TOLD + 1, 2 * _TOLD + 1, 451]
    for emitter in ("em", "e0", "e449"):
        text = CANCELLED if end == "cancelled" else "1"
        assert await shard.replies(emitter) == [[("a", end, 1, text)]]
    assert (await shard.turn()).next_due == -1


async def test_a_turn_that_is_sent_again_tells_nobody_twice(shard: Shard) -> None:
    await _fill(shard, 450)
    for number in range(450):
        await shard.open_replies(f"e{number}")
    await shard.run("completed")
    for _ in range(2):
        await shard.turn()
        await shard.turn(call=shard.calls("w"))
    assert [len(await shard.replies(f"e{number}")) for number in range(450)] == [1] * 450
