"""Who watches: nothing is written without a watcher, nothing twice, no gap unsaid, and the stream is
bounded.
"""

from __future__ import annotations

import pytest
from drivers.shards import QUEUE, Shard, add_queue, row
from drivers.watching.watchers import Watcher, shown

from eventbus.errors import StoreRefused
from eventbus.store.change_stream import ALL

OTHER = "event.user.created"


async def _flag(shard: Shard) -> int:
    """Return the flags of the shard."""
    return ord((await shard.command("HGET", shard.shard_key("queues"), "*"))[1])


async def _lapse(shard: Shard) -> None:
    """Let the time of all watchers be over."""
    await shard.command("DEL", shard.shard_key("watched"))


async def _lapse_one(shard: Shard, scope: str) -> None:
    await shard.command("HSET", shard.shard_key("watched"), scope, 1)


async def _kinds(shard: Shard) -> list[str]:
    return [each for each in await shard.command("KEYS", "*") if each.endswith(("changes", "watched"))]


async def test_nothing_is_written_while_nobody_watches(shard: Shard) -> None:
    await shard.add(row("a"), row("b", key="k", priority=2))
    await shard.run("completed")
    assert await _kinds(shard) == []
    assert await _flag(shard) == 0


async def test_a_queue_that_nobody_watches_tells_nothing(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    length = await shard.command("XLEN", shard.shard_key("changes"))
    await shard.add(row("a"), queues=[add_queue(OTHER)])
    assert await shard.command("XLEN", shard.shard_key("changes")) == length


async def test_the_flag_goes_when_the_watchers_died(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    assert await _flag(shard) == 1
    assert 25_000 < await shard.command("PTTL", shard.shard_key("watched")) <= 30_000
    assert 590_000 < await shard.command("PTTL", shard.shard_key("changes")) <= 600_000
    await _lapse(shard)
    await shard.add(row("a"))
    assert await _flag(shard) == 0
    assert await shard.command("EXISTS", shard.shard_key("watched")) == 0
    await shard.add(row("b"))
    assert [each.id for each in (await shard.turn()).claims] == ["a", "b"]


async def test_the_rest_of_the_book_stays_as_it_was(shard: Shard, watcher: Watcher) -> None:
    before = await shard.command("HGET", shard.shard_key("queues"), "*")
    await watcher.begin()
    await _lapse(shard)
    await shard.add(row("a"))
    assert await shard.command("HGET", shard.shard_key("queues"), "*") == before


async def test_a_damaged_book_is_left_alone(shard: Shard) -> None:
    await shard.command("HSET", shard.shard_key("queues"), "*", "kept")
    await shard.add(row("a"))
    assert await shard.command("HGET", shard.shard_key("queues"), "*") == "kept"


async def test_two_watchers_see_the_same_and_one_end_leaves_the_other(shard: Shard, watcher: Watcher) -> None:
    second = Watcher(shard)
    await watcher.begin()
    await second.begin()
    await shard.add(row("a"))
    assert await watcher.see() == await second.see() == ["added a waiting"]
    await second.aclose()
    await shard.add(row("b"))
    assert await watcher.see() == ["added b waiting"]


async def test_a_watcher_of_all_sees_every_queue_in_one_order(shard: Shard) -> None:
    everything = Watcher(shard, ALL)
    await everything.begin()
    for job, queue in (("a", QUEUE), ("b", OTHER), ("c", QUEUE)):
        await shard.add(row(job), queues=[add_queue(queue)])
    assert [(each.job_id, each.queue) for each in await everything.take()] == [
        ("a", QUEUE),
        ("b", OTHER),
        ("c", QUEUE),
    ]
    await everything.aclose()


@pytest.mark.parametrize("seen", range(6))
async def test_reading_goes_on_behind_any_change_without_a_gap_or_a_repeat(
    shard: Shard, watcher: Watcher, seen: int
) -> None:
    await watcher.begin()
    await shard.add(row("a"), row("b"), row("c"))
    await shard.add(row("d", key="k"))
    await shard.run("completed")
    changes = await watcher.take()
    later = Watcher(shard, since=int(changes[seen].position))
    await later.begin()
    assert await later.take() == changes[seen + 1 :]
    await later.aclose()


async def test_a_position_of_before_a_time_without_watchers_has_a_gap(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    await shard.add(row("a"))
    (first,) = await watcher.take()
    await _lapse(shard)
    await shard.add(row("b"))
    later = Watcher(shard, since=int(first.position))
    await later.begin()
    await shard.add(row("c"))
    told = await later.take()
    assert shown(told) == ["missed", "added c waiting"]
    again = Watcher(shard, since=int(told[0].position))
    await again.begin()
    assert await again.see() == ["added c waiting"]
    for each in (later, again):
        await each.aclose()


async def test_a_lapse_is_told_though_another_watcher_kept_the_stream(shard: Shard, watcher: Watcher) -> None:
    other = Watcher(shard, OTHER)
    await other.begin()
    await watcher.begin()
    await _lapse_one(shard, QUEUE)
    await shard.add(row("a"))
    await watcher.begin()  # its renewal comes too late
    await shard.add(row("b"))
    assert await watcher.see() == ["missed", "added b waiting"]
    assert await other.see() == []
    await other.aclose()


async def test_a_watcher_of_all_is_no_gap_for_who_watched_before(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    everything = Watcher(shard, ALL)
    await everything.begin()
    await shard.add(row("a"))
    assert await watcher.see() == ["added a waiting"]
    await everything.aclose()


async def test_a_queue_is_covered_by_a_watcher_of_all(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    everything = Watcher(shard, ALL)
    await everything.begin()
    await shard.add(row("a"))
    await _lapse_one(shard, QUEUE)
    await shard.add(row("b"))
    await watcher.begin()
    assert await watcher.see() == ["added a waiting", "added b waiting"]
    await everything.aclose()


async def test_who_comes_back_while_another_watches_all_hears_of_the_gap_before_it(
    shard: Shard, watcher: Watcher
) -> None:
    await watcher.begin()
    await shard.add(row("a"))
    (first,) = await watcher.take()
    await _lapse_one(shard, QUEUE)
    await shard.add(row("b"))
    everything = Watcher(shard, ALL)
    await everything.begin()
    await shard.add(row("c"))
    later = Watcher(shard, since=int(first.position))
    await later.begin()
    assert await later.see() == ["missed", "added c waiting"]
    for each in (everything, later):
        await each.aclose()


async def test_the_stream_is_bounded_and_who_lags_is_told(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    for batch in range(300):
        await shard.add(*(row(f"{batch}-{i}") for i in range(200)))
    assert await shard.command("XLEN", shard.shard_key("changes")) <= 50_000 / 200 + 100
    changes = await watcher.take()
    assert changes[0].what == "missed"
    told = [each.job_id for each in changes[1:]]
    assert told == [f"{batch}-{i}" for batch in range(300) for i in range(200)][-len(told) :]
    assert 49_000 < len(told) < 60_000


async def test_a_lost_stream_is_a_gap(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    await shard.add(row("a"))
    assert await watcher.see() == ["added a waiting"]
    await shard.command("DEL", shard.shard_key("changes"), shard.shard_key("watched"))
    await watcher.begin()
    await shard.add(row("b"))
    assert await watcher.see() == ["missed", "added b waiting"]


async def test_an_emptied_server_is_a_gap(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    await shard.command("FLUSHALL")
    await watcher.begin()
    await shard.add(row("a"))
    assert await watcher.see() == ["missed", "added a waiting"]


async def test_changes_that_a_failover_forgot_are_a_gap(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    await shard.add(row("a"))
    await watcher.take()
    last = watcher.stream.position
    await shard.command("XDEL", shard.shard_key("changes"), f"{last}-0")  # and another change has its number
    packed = "another"
    await shard.command("XTRIM", shard.shard_key("changes"), "MAXLEN", 0)
    await shard.command("DEL", shard.shard_key("changes"))
    await shard.command("XADD", shard.shard_key("changes"), f"{last}-0", "d", packed)
    watcher.stream.doubt()
    await watcher.begin()
    await shard.add(row("b"))
    assert await watcher.see() == ["missed", "added b waiting"]


async def test_a_reader_ahead_of_the_server_is_told(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    ahead = Watcher(shard, since=watcher.stream.position + 1000)
    await ahead.begin()
    await shard.add(row("a"))
    assert await ahead.see() == ["missed", "added a waiting"]
    await ahead.aclose()


async def test_a_doubt_that_is_unfounded_repeats_nothing(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    await shard.add(row("a"))
    assert await watcher.see() == ["added a waiting"]
    watcher.stream.doubt()
    await watcher.begin()
    await shard.add(row("b"))
    assert await watcher.see() == ["added b waiting"]


async def test_an_entry_that_cannot_be_read_is_a_gap(shard: Shard, watcher: Watcher) -> None:
    await watcher.begin()
    number = await shard.command("HINCRBY", shard.shard_key("watched"), "#", 1)
    await shard.command("XADD", shard.shard_key("changes"), f"{number}-0", "d", "no msgpack")
    await shard.add(row("a"))
    assert await watcher.see() == ["missed", "added a waiting"]


async def test_another_programs_value_in_place_of_the_hash_is_refused(
    shard: Shard, watcher: Watcher, planted: set[str]
) -> None:
    planted.add(shard.shard_key("watched"))
    await shard.command("SET", shard.shard_key("watched"), "x")
    with pytest.raises(StoreRefused, match="another program"):
        await watcher.begin()


async def test_another_programs_value_in_place_of_the_stream_stays_and_harms_no_job(
    shard: Shard, watcher: Watcher, planted: set[str]
) -> None:
    planted.add(shard.shard_key("changes"))
    await shard.command("SET", shard.shard_key("changes"), "x")
    await watcher.begin()
    await shard.add(row("a"))
    await shard.run("completed")
    assert await shard.state("a") == "completed"
    assert await shard.command("GET", shard.shard_key("changes")) == "x"
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        await watcher.stream.read()


async def test_a_stream_that_somebody_deleted_is_made_again_by_a_renewal(
    shard: Shard, watcher: Watcher
) -> None:
    await watcher.begin()
    await shard.command("DEL", shard.shard_key("changes"))
    await shard.add(row("a"))
    await watcher.begin()
    await shard.add(row("b"))
    assert await watcher.see() == ["missed", "added b waiting"]


async def test_a_clock_that_was_set_back_begins_the_stream_anew(shard: Shard, watcher: Watcher) -> None:
    await shard.command("XADD", shard.shard_key("changes"), "9000000000000000-0", "d", "of the future")
    await watcher.begin()
    await shard.add(row("a"))
    assert await watcher.see() == ["added a waiting"]


async def test_a_long_text_is_cut_where_a_character_ends(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await watcher.begin()
    await shard.note("a", answer.token, '"' + "é" * 500 + '"')
    (change,) = await watcher.take()
    assert change.note == '"' + "é" * 99


async def test_watching_works_in_a_full_server(shard: Shard, watcher: Watcher) -> None:
    await shard.add(row("a"))
    await shard.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await watcher.begin()
        await shard.run("completed")
    finally:
        await shard.command("CONFIG", "SET", "maxmemory", "0")
    assert await watcher.see() == ["claimed a active", "drained", "completed a completed"]


async def test_a_book_that_was_lost_is_a_gap_for_everybody(shard: Shard, watcher: Watcher) -> None:
    other = Watcher(shard, OTHER)
    await watcher.begin()
    await other.begin()
    await shard.command("DEL", shard.shard_key("queues"))
    await shard.add(row("a"))
    await other.begin()
    await shard.add(row("b"), queues=[add_queue(QUEUE)])
    assert await watcher.see() == ["missed", "added b waiting"]
    await shard.add(row("c"), queues=[add_queue(OTHER)])
    assert await other.see() == ["missed", "added c waiting"]
    await other.aclose()
