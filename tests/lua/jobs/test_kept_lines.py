"""note.lua: lines that a job keeps, under its lease, once each, and removed with it."""

from __future__ import annotations

from drivers.shards import LEASE, QUEUE, START, Shard, row, settle

from eventbus.store.scripting.script_rows import LineRow, NoteRow, SweepQueue


async def _lines(shard: Shard, job: str = "a") -> list[str]:
    return await shard.command("LRANGE", shard.key("lines", job), 0, -1)


async def test_a_repeated_call_adds_its_lines_once_and_one_that_was_half_answered_the_rest(
    shard: Shard,
) -> None:
    """`note-not-answered`."""
    await shard.add(row("a"))
    token = (await shard.turn()).token
    rows = [LineRow("a", token, number, 5 * number, f"line {number}") for number in (1, 2, 3)]
    for taken in (rows[:2], rows[:2], rows):
        assert await shard.store.note([], taken, now=shard.now) == []
    assert await _lines(shard) == [f"{START - 5 * n} {token} {n} line {n}" for n in (1, 2, 3)]


async def test_the_next_claim_numbers_its_lines_anew(shard: Shard) -> None:
    await shard.add(row("a"))
    for text in ("first", "second"):
        answer = await shard.turn()
        await shard.store.note([], [LineRow("a", answer.token, 1, 0, text)], now=shard.now)
        await shard.turn(settle(answer.claims[0], answer.token, "waiting", "begun"), want=0)
    assert [each.rpartition(" ")[2] for each in await _lines(shard)] == ["first", "second"]


async def test_who_has_lost_the_lease_keeps_nothing_and_hears_so_once(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    token = (await shard.turn()).token
    shard.now += LEASE
    await shard.rescue()
    await shard.turn(worker="other", want=1)
    rows = [LineRow("a", token, n, 0, "late") for n in (1, 2)]
    assert await shard.store.note([NoteRow("a", token, "1")], rows, now=shard.now) == ["a"]
    assert await _lines(shard) == []


async def test_lines_go_with_the_record(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.store.note([], [LineRow("a", answer.token, 1, 0, "here")], now=shard.now)
    await shard.turn(settle(answer.claims[0], answer.token))
    assert len(await _lines(shard)) == 1
    shard.now += 10 * 86_400_000
    assert await shard.sweep(SweepQueue(QUEUE, 0, 10**9, 0, 0)) == 1
    assert await shard.command("EXISTS", shard.key("job", "a"), shard.key("lines", "a")) == 0


async def test_somebody_elses_value_in_their_place_refuses_nothing(shard: Shard) -> None:
    await shard.add(row("a"))
    token = (await shard.turn()).token
    await shard.command("SET", shard.key("lines", "a"), "junk")
    assert (
        await shard.store.note([NoteRow("a", token, "1")], [LineRow("a", token, 1, 0, "here")], now=shard.now)
        == []
    )
    assert await shard.command("GET", shard.key("lines", "a")) == "junk"
    assert await shard.command("GET", shard.key("progress", "a")) == "1"
