"""The reply stream of one emitter: read in order from the last place, whatever else is in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from drivers.shards import Shard, row

from eventbus.errors import StoreCorrupt, StoreError, StoreUnavailable
from eventbus.store import reply_stream
from eventbus.store.reply_stream import ReplyStream
from eventbus.store.scripting.script_rows import Outcome
from eventbus.store.store import Store


@pytest.fixture
def shard(store: Store) -> Shard:
    return Shard(store)


@pytest.fixture
async def stream(store: Store) -> AsyncIterator[ReplyStream]:
    stream = ReplyStream(store, "em")
    await stream.attend()
    yield stream
    await stream.aclose(delete=True)


async def _put_raw(shard: Shard, *fields: str | bytes) -> None:
    await shard.command("XADD", shard.key("replies", "em"), "NOMKSTREAM", "*", *fields)


async def _end(shard: Shard, *jobs: str) -> None:
    await shard.add(*(row(job) for job in jobs))
    await shard.run("completed")


async def test_outcomes_come_in_the_order_in_which_jobs_ended(shard: Shard, stream: ReplyStream) -> None:
    await _end(shard, "a", "b")
    await _end(shard, "c")
    assert await stream.read() == [Outcome(each, "completed", "1") for each in "abc"]


async def test_what_was_read_is_not_read_again(shard: Shard, stream: ReplyStream) -> None:
    await _end(shard, "a")
    await stream.read()
    await _end(shard, "b")
    assert [each.job for each in await stream.read()] == ["b"]


async def test_a_large_outcome_is_announced_without_its_text(shard: Shard, stream: ReplyStream) -> None:
    await shard.add(row("a"))
    await shard.run("failed", text="x" * 9000)
    assert await stream.read() == [Outcome("a", "failed", None)]


async def test_a_blocked_read_ends_with_the_outcome_that_comes(shard: Shard, stream: ReplyStream) -> None:
    await stream.read()  # the entry that opened the stream
    reading = asyncio.ensure_future(stream.read())
    await _end(shard, "a")
    assert [each.job for each in await reading] == ["a"]


async def test_a_nudge_ends_a_blocked_read(stream: ReplyStream, monkeypatch: pytest.MonkeyPatch) -> None:
    await stream.read()
    monkeypatch.setattr(reply_stream, "_BLOCK_MS", 3_600_000)
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    await stream.nudge(deadline=time.monotonic() + 5)
    assert await reading == []


async def test_a_nudge_brings_no_missing_stream_back(shard: Shard, stream: ReplyStream) -> None:
    await shard.command("DEL", shard.key("replies", "em"))
    await stream.nudge(deadline=time.monotonic() + 5)
    assert await shard.command("EXISTS", shard.key("replies", "em")) == 0


async def test_trimming_drops_what_was_read_and_nothing_else(shard: Shard, stream: ReplyStream) -> None:
    await _end(shard, "a")
    await _end(shard, "b")
    await stream.read()
    await _end(shard, "c")
    await stream.trim()
    await stream.trim()
    left = await shard.replies()
    assert [[each[0] for each in entry] for entry in left] == [["b"], ["c"]]  # the last read one stays
    assert [each.job for each in await stream.read()] == ["c"]


async def test_entries_that_somebody_else_trimmed_are_passed_over(shard: Shard, stream: ReplyStream) -> None:
    for job in "abc":
        await _end(shard, job)
    await shard.command("XTRIM", shard.key("replies", "em"), "MAXLEN", 1)
    assert [each.job for each in await stream.read()] == ["c"]


async def test_opening_again_keeps_place_and_content(shard: Shard, stream: ReplyStream) -> None:
    await _end(shard, "a")
    await stream.read()
    await _end(shard, "b")
    await shard.command("EXPIRE", shard.key("replies", "em"), 5)
    await stream.attend()
    assert 590_000 < await shard.ttl("replies", "em") <= 600_000
    assert [each.job for each in await stream.read()] == ["b"]


async def test_a_stream_that_was_lost_is_made_anew_and_read_from_its_beginning(
    shard: Shard, stream: ReplyStream
) -> None:
    await _end(shard, "a")
    await stream.read()
    await shard.command("DEL", shard.key("replies", "em"))
    await _end(shard, "lost")
    await stream.attend()
    # A server that came back with less may also number its entries anew.
    key = shard.key("replies", "em")
    await shard.command("DEL", key)
    await shard.command("XADD", key, "1-1", "d", msgspec.msgpack.encode(["b", "completed", 1, "2"]))
    await shard.command("EXPIRE", key, 600)
    assert await stream.read() == [Outcome("b", "completed", "2")]


async def test_closing_removes_the_stream_when_asked_to(shard: Shard, store: Store) -> None:
    for delete, left in ((False, 1), (True, 0)):
        stream = ReplyStream(store, "short")
        await stream.attend()
        await stream.aclose(delete=delete)
        assert await shard.command("EXISTS", shard.key("replies", "short")) == left


async def test_a_read_of_a_closed_stream_is_unavailable(stream: ReplyStream) -> None:
    await stream.read()
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    await stream.aclose(delete=False)
    with pytest.raises(StoreUnavailable):
        await reading


@pytest.mark.parametrize("fields", [("x", "y"), ("nudge", ""), ("e", b"\xff\xfe"), ("D", b"\x90")])
async def test_foreign_entries_are_passed_over(
    shard: Shard, stream: ReplyStream, fields: tuple[str | bytes, ...]
) -> None:
    await _put_raw(shard, *fields)
    await _end(shard, "a")
    assert [each.job for each in await stream.read()] == ["a"]


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"junk",
        b"\xc1",
        b"\x94\xa1a",
        msgspec.msgpack.encode({"a": 1}),
        msgspec.msgpack.encode(["a", "completed", 1]),
        msgspec.msgpack.encode([1, "completed", 1, "x"]),
        msgspec.msgpack.encode(["a", "completed", 1, None]),
        b"\x94\xa1\xff\xa1b\x01\xa1c",
    ],
)
async def test_a_corrupt_entry_is_told_once_and_loses_no_other(
    shard: Shard, stream: ReplyStream, packed: bytes
) -> None:
    await _end(shard, "a")
    await _put_raw(shard, "d", packed)
    await _end(shard, "b")
    assert [each.job for each in await stream.read()] == ["a", "b"]
    with pytest.raises(StoreCorrupt, match="reply stream"):
        await stream.read()
    await _end(shard, "c")
    assert [each.job for each in await stream.read()] == ["c"]


async def test_a_foreign_value_in_the_place_of_the_stream_is_refused(
    shard: Shard, stream: ReplyStream, planted: set[str]
) -> None:
    key = shard.key("replies", "em")
    planted.add(key)
    await shard.command("SET", key, "junk")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await stream.read()
    await _end(shard, "a")  # and it harms no worker
    assert await shard.state("a") == "completed"
