"""The jobs that groups make of emissions: a call is bounded in them."""

from __future__ import annotations

import pytest
from drivers.shards import QUEUE, Shard, add_queue, row

from eventbus.errors import StoreRefused


async def _add_groups(shard: Shard, count: int) -> None:
    names = [f"g{number}" for number in range(count)]
    await shard.command("SADD", shard.key("groups", QUEUE), *names)
    await shard.command("SADD", shard.shard_key("grouped"), QUEUE)


async def _jobs(shard: Shard) -> int:
    return len(
        await shard.command("KEYS", f"{shard.key('job', '')}*".replace("{", "[{]").replace("}", "[}]"))
    )


async def test_the_answer_says_how_many_jobs_an_emission_makes(shard: Shard) -> None:
    await _add_groups(shard, 3)
    queues = [add_queue(), add_queue("event.two"), add_queue("event.none", has_default=0)]
    await shard.add(row("a"), row("b", queue=2), row("c", queue=3), queues=queues)
    assert shard.widths == [4, 1, 0]
    await shard.add(row("d"), queues=[add_queue("event.two")])
    assert shard.widths == [1]


@pytest.mark.parametrize("kind", ["plain", "with options"])
async def test_a_call_takes_rows_while_their_jobs_are_200_and_the_others_in_their_order_later(
    shard: Shard, kind: str
) -> None:
    await _add_groups(shard, 49)  # 50 jobs an emission
    rows = [row(f"j{number}", priority=0 if kind == "plain" else 1) for number in range(10)]
    for _ in ("once", "again"):  # a repeat is answered the same
        verdicts = await shard.add(*rows)
        assert [(each.place, each.word) for each in verdicts] == [(place, "later") for place in range(4, 10)]
        assert await _jobs(shard) == 200
    assert [each.place for each in await shard.add(*rows[4:])] == [4, 5]
    assert await shard.add(*rows[8:]) == []
    assert await _jobs(shard) == 500
    assert await shard.members("ready", QUEUE) == [each.id for each in rows]
    assert await shard.members("ready", f"{QUEUE}@g7") == [f"{each.id}@g7" for each in rows]


async def test_a_small_row_does_not_overtake_a_large_one(shard: Shard) -> None:
    await _add_groups(shard, 149)
    queues = [add_queue(), add_queue("event.two")]
    verdicts = await shard.add(row("a"), row("b"), row("c", queue=2), queues=queues)
    assert [(each.place, each.word) for each in verdicts] == [(1, "later"), (2, "later")]


async def test_the_first_row_is_taken_whole(shard: Shard) -> None:
    await _add_groups(shard, 1000)
    verdicts = await shard.add(row("a"), row("b"))
    assert [(each.place, each.word) for each in verdicts] == [(1, "later")]
    assert await _jobs(shard) == 1001


async def test_200_rows_without_groups_are_one_call(shard: Shard) -> None:
    rows = [row(f"j{number}", key=f"k{number}") for number in range(201)]
    assert [each.place for each in await shard.add(*rows)] == [200]


async def test_a_queue_has_1000_groups_at_most(shard: Shard) -> None:
    await _add_groups(shard, 1000)
    await shard.store.groups.add(QUEUE, "g999")
    assert await shard.announce(group="g999") == 0
    with pytest.raises(
        StoreRefused, match="has 1000 groups, which is the most; remove one before you add more"
    ):
        await shard.store.groups.add(QUEUE, "more")
    with pytest.raises(StoreRefused, match="has 1000 groups"):
        await shard.announce(group="more")
    assert len(await shard.store.groups.of(QUEUE)) == 1000
    assert await shard.command("EXISTS", shard.key("pools", f"{QUEUE}@more")) == 0
