"""The book of a shard: opened by a start, and opened again after somebody emptied the server."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from drivers.records import make_suspect
from drivers.shards import LEASE, QUEUE, Shard, row, settle

from eventbus.errors import StoreRefused
from eventbus.store.connection.connector import Connector
from eventbus.store.scripting.script_rows import LeaseRow, SweepQueue
from eventbus.store.store import Store


async def _lose_all(shard: Shard) -> None:
    names = await shard.command("KEYS", f"{shard.store.keys.root}:*")
    await shard.command("DEL", *names)


async def test_a_start_opens_the_shard_and_leaves_an_open_one_as_it_is(
    shard: Shard, prefix: str, server_url: str
) -> None:
    book = shard.shard_key("queues")
    assert await shard.command("HSTRLEN", book, "*") == 26
    await shard.command("HSET", book, "*", "kept")
    other = Store(Connector(server_url), prefix=prefix, name="other")
    await other.start(deadline=None)
    await other.aclose()
    assert await shard.command("HGET", book, "*") == "kept"


async def test_calls_go_on_after_the_server_was_emptied(
    shard: Shard, logs: list[MutableMapping[str, Any]]
) -> None:
    await shard.add(row("a"))
    await shard.turn()
    await _lose_all(shard)
    assert await shard.add(row("b")) == []
    await _lose_all(shard)
    assert (await shard.turn()).claims == []
    await shard.add(row("c"))
    answer = await shard.turn()
    assert [each.id for each in answer.claims] == ["c"]
    await _lose_all(shard)
    assert (await shard.turn(settle(answer.claims[0], answer.token))).lost == ["c"]
    said = [each["event"] for each in logs if each["log_level"] == "warning"]
    assert said == ["the server has lost what it knew of the shard, opening it again"] * 3


async def test_calls_that_find_the_shard_closed_at_once_open_it_once(
    shard: Shard, logs: list[MutableMapping[str, Any]]
) -> None:
    await _lose_all(shard)
    adds = [shard.add(row(f"job-{n}")) for n in range(20)]
    assert await asyncio.gather(*adds) == [[]] * 20
    said = [each["event"] for each in logs if each["log_level"] == "warning"]
    assert said == ["the server has lost what it knew of the shard, opening it again"]
    assert len((await shard.turn(want=20)).claims) == 20


async def test_the_lease_threads_call_is_refused_and_writes_nothing(shard: Shard) -> None:
    await _lose_all(shard)
    leases = shard.store.open_leases(timeout=5)
    with pytest.raises(StoreRefused) as caught:
        leases.renew([LeaseRow("a", "w:1")], worker="w", calls=(0, 0), lease_ms=LEASE, lag_ms=0)
    leases.close()
    assert caught.value.code == "NOSHARD"
    assert await shard.command("KEYS", f"{shard.store.keys.root}:*") == []


async def test_looking_opens_nothing(shard: Shard) -> None:
    await _lose_all(shard)
    assert [each.workers for each in await shard.survey(QUEUE)] == [0]
    assert (await shard.store.inspection.job("a")).fields == {}
    assert await shard.command("KEYS", f"{shard.store.keys.root}:*") == []


async def test_keys_of_the_first_edition_are_told_and_left_alone(
    shard: Shard, prefix: str, server_url: str, logs: list[MutableMapping[str, Any]]
) -> None:
    old = f"{shard.store.keys.first_edition}:order"
    await shard.command("SET", old, "7")
    try:
        other = Store(Connector(server_url), prefix=prefix, name="other")
        await other.start(deadline=None)
        await other.aclose()
        assert await shard.command("GET", old) == "7"
    finally:
        await shard.command("DEL", old)
    (line,) = [each for each in logs if each["log_level"] == "warning"]
    assert "keys of the first edition" in line["event"]
    assert line["keys"] == f"{shard.store.keys.first_edition}:*"


async def test_a_sweep_finds_what_a_removed_book_said_of_a_queue(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("ranked", priority=3), row("suspect"))
    await shard.command(*make_suspect(shard.key("job", "suspect"), QUEUE))
    await shard.command("DEL", shard.shard_key("queues"))
    assert (await shard.turn()).claims == [], "the book that was made anew says nothing of the queue"
    await shard.sweep(SweepQueue(QUEUE, 10, 1, 10, 1))
    assert (await shard.turn(want=0)).woken == []
    answers = [await shard.turn(is_alone=is_alone) for is_alone in (False, True)]
    assert [[each.id for each in answer.claims] for answer in answers] == [["ranked"], ["suspect"]]
    assert QUEUE in answers[0].woken
