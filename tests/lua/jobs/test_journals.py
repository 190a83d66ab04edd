"""Journals: what the holder of a job appends by rows of its turns, and what the next holder is given."""

from __future__ import annotations

import pytest
from drivers.shards import QUEUE, Shard, row, settle, turn_queue

from eventbus.store.scripting.packing import Append
from eventbus.store.scripting.script_rows import ClaimRow, SweepQueue

_KINDS = ("journal", "live", "inbox")
_A = ClaimRow("a", 1, "", 0, 0, 0, 0, "")


async def _claim(shard: Shard, *jobs: str) -> str:
    """Claim jobs that wait; return their token."""
    answer = await shard.turn()
    assert [each.id for each in answer.claims] == [*jobs]
    return answer.token


async def _journal(shard: Shard, job: str = "a") -> list[str]:
    return list(await shard.store.journals.entries(job, first=0, limit=1000))


async def _leftovers(shard: Shard, job: str = "a") -> int:
    return await shard.command("EXISTS", *(shard.key(kind, job) for kind in _KINDS))


async def test_entries_stand_in_the_order_in_which_they_were_appended(shard: Shard) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    assert await shard.append("a", token, 0, "one", "two") == ("ok", 0)
    assert await shard.append("a", token, 2, "three") == ("ok", 0)
    assert await _journal(shard) == ["one", "two", "three"]
    assert await shard.store.journals.entries("a", first=1, limit=1) == ["two"]


async def test_the_next_holder_is_given_the_journal_and_a_job_without_one_has_none(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    assert answer.journals == ()
    await shard.append("b", answer.token, 0, "one", "two")
    await shard.turn(*(settle(each, answer.token, "waiting", "") for each in answer.claims), want=0)
    answer = await shard.turn()
    (journal,) = answer.journals
    assert (journal.id, journal.length, journal.heard, journal.entries, journal.signals) == (
        "b",
        2,
        0,
        ["one", "two"],
        [],
    )


async def test_a_turn_that_is_sent_again_is_answered_the_same(shard: Shard) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    appends = [Append("a", token, 0, ["one"], {}, []), Append("a", "w:77", 1, ["two"], {}, [])]
    first = await shard.turn(want=0, appends=appends)
    assert [(each.place, each.word) for each in first.refusals] == [(2, "lost")]
    again = await shard.turn(want=0, appends=appends, call=shard.calls("w"))
    assert again.refusals == first.refusals
    assert await _journal(shard) == ["one"]
    await shard.turn(settle(_A, token, "waiting", ""), want=0)
    claimed = await shard.turn()
    again = await shard.turn(call=shard.calls("w"))
    assert (again.claims, again.journals) == (claimed.claims, claimed.journals)


async def test_an_append_of_a_turn_that_was_given_up_is_known_by_its_place(shard: Shard) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    await shard.append("a", token, 0, "one", "two")
    assert await shard.append("a", token, 0, "one", "two") == ("ok", 0), "another call, the same row"
    await shard.append("a", token, 2, "three")
    assert await shard.append("a", token, 0, "one", "two") == ("ok", 0), "also behind a later one"
    assert await _journal(shard) == ["one", "two", "three"]


async def test_entries_that_the_server_lost_are_told_by_the_length(shard: Shard) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    await shard.append("a", token, 0, "one", "two", "three")
    await shard.command("LTRIM", shard.key("journal", "a"), 0, 0)  # as after a failover
    assert await shard.append("a", token, 3, "four", live={"state": "x"}) == ("behind", 1)
    assert await _journal(shard) == ["one"]
    assert await shard.command("EXISTS", shard.key("live", "a")) == 0
    assert await shard.append("a", token, 1, "two", "three", "four") == ("ok", 0)
    assert await _journal(shard) == ["one", "two", "three", "four"]


@pytest.mark.parametrize("entries", [("other",), ("two", "three", "four")])
async def test_a_journal_with_other_entries_is_told(shard: Shard, entries: tuple[str, ...]) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    await shard.append("a", token, 0, "one", "two", "three")
    assert await shard.append("a", token, 1, *entries) == ("torn", 3)
    assert await _journal(shard) == ["one", "two", "three"]


@pytest.mark.parametrize("command", ["SET", "RPUSH"])
async def test_another_programs_value_in_its_place_is_told_and_hinders_no_other_job(
    shard: Shard, command: str
) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    await shard.command(command, shard.key("journal", "a"), "foreign")
    appends = [
        Append("a", answer.token, 0, ["one"], {"state": "1"}, []),
        Append("b", answer.token, 0, ["one"], {}, []),
    ]  # fmt: skip
    answer = await shard.turn(settle(answer.claims[1], answer.token), want=0, appends=appends)
    assert [(each.place, each.word) for each in answer.refusals] == [(1, "torn")]
    assert await shard.state("b") == "completed"
    assert await shard.command("EXISTS", shard.key("live", "a")) == 0
    if command == "RPUSH":
        assert await _journal(shard) == ["foreign"]
    await shard.command("DEL", shard.key("journal", "a"))


@pytest.mark.parametrize("how", ["gone", "foreign"])
async def test_a_job_whose_journal_is_lost_is_damaged_and_does_not_begin_anew(shard: Shard, how: str) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.append("a", answer.token, 0, "one")
    await shard.turn(settle(answer.claims[0], answer.token, "waiting", ""), want=0)
    await shard.command("DEL", shard.key("journal", "a"))
    if how == "foreign":
        await shard.command("SET", shard.key("journal", "a"), "foreign")
    assert (await shard.turn()).claims == []
    record = await shard.record("a")
    assert (record["state"], record["why"]) == ("failed", "its journal is gone")
    await shard.command("DEL", shard.key("journal", "a"))


async def test_what_of_a_damaged_job_belongs_to_no_queue_goes_after_a_week(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.append("a", answer.token, 0, "one", live={"state": "1"})
    await shard.signal("a")
    await shard.cut("a", 5)
    shard.now += 30_000
    await shard.rescue()
    assert [await shard.ttl(kind, "a") > 0 for kind in _KINDS] == [True, True, True]
    await shard.command("DEL", *(shard.key(kind, "a") for kind in ("job", "more", "result", "body", *_KINDS)))


@pytest.mark.parametrize("how", ["settled", "given back", "rescued", "another token", "never held", "gone"])
async def test_nobody_but_the_holder_appends(shard: Shard, how: str) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    (claim,), token = answer.claims, answer.token
    if how == "settled":
        await shard.turn(settle(claim, token), want=0)
    elif how == "given back":
        await shard.turn(settle(claim, token, "waiting", ""), want=0)
    elif how == "rescued":
        shard.now += 30_000
        await shard.rescue()
    elif how == "another token":
        token = "w:99"
    elif how == "gone":
        await shard.command("DEL", shard.key("job", "a"))
    job = "b" if how == "never held" else "a"
    assert await shard.append(job, token, 0, "one") == ("lost", 0)
    assert await _leftovers(shard) == 0
    if how == "gone":
        await shard.turn(settle(claim, token), want=0)


async def test_live_texts_are_replaced_whole_and_come_with_their_entry(shard: Shard) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    await shard.append("a", token, 0, "one", live={"state": "1", "place": "x"})
    await shard.append("a", token, 1, live={"state": "2"})
    assert await shard.store.journals.live("a", "state") == "2"
    assert await shard.store.journals.live("a", "place") == "x"
    assert await shard.store.journals.live("a", "none") is None
    assert await _journal(shard) == ["one"]


async def test_who_gets_on_has_neither_attempts_nor_stalls(shard: Shard) -> None:
    await shard.add(row("a"))
    for _ in range(2):
        await _claim(shard, "a")
        shard.now += 30_000
        await shard.rescue()
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token, "delayed", "{}", attempts=2), want=0)
    answer = await shard.turn()
    assert (answer.claims[0].attempts, answer.claims[0].stalls) == (2, 2)
    await shard.append("a", answer.token, 0, live={"state": "1"})
    assert (await shard.record("a"))["attempts"] == "2", "to say something is not to get on"
    await shard.append("a", answer.token, 0, "one")
    record = await shard.record("a")
    assert (record["attempts"], {"stalls", "spared"} & record.keys()) == ("0", set())
    await shard.append("a", answer.token, 1, live={"state": "1"})
    await shard.turn(settle(answer.claims[0], answer.token, "waiting", ""), want=0)
    (claim,) = (await shard.turn()).claims
    assert (claim.attempts, claim.stalls) == (0, 0)


async def test_an_append_and_the_end_of_its_job_may_travel_in_one_turn(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    appends = [Append("a", answer.token, 0, ["one"], {"state": "1"}, [])]
    answer = await shard.turn(settle(answer.claims[0], answer.token), want=0, appends=appends)
    assert (answer.lost, answer.refusals) == ([], ())
    assert await shard.state("a") == "completed"
    assert await _journal(shard) == ["one"], "it stays as long as its record"
    shard.now += 7_200_000
    assert await shard.sweep(SweepQueue(QUEUE, 10, 1, 10, 1)) == 1
    assert await _leftovers(shard) == 0


async def test_retention_removes_all_that_belongs_to_a_journal(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    await shard.append("a", answer.token, 0, "one", live={"state": "1"})
    await shard.signal("a")
    await shard.append("b", answer.token, 0, "one")
    ends = ["completed", "failed"]
    rows = [settle(each, answer.token, end) for each, end in zip(answer.claims, ends, strict=True)]
    await shard.turn(*rows, want=0)
    shard.now += 7_200_000
    await shard.turn(queues=[turn_queue(keep_completed=0, age_failed=1)])
    await shard.sweep(SweepQueue(QUEUE, 0, 1, 0, 1))
    assert [await shard.state(job) for job in "ab"] == [None, None]
    assert await _leftovers(shard, "a") + await _leftovers(shard, "b") == 0


async def test_a_claim_brings_the_first_entries_of_a_long_journal_and_says_how_many_there_are(
    shard: Shard,
) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    await shard.append("a", answer.token, 0, *(f"entry {n}" for n in range(1200)))
    await shard.append("b", answer.token, 0, *("." * 300_000 for _ in range(80)))
    await shard.turn(*(settle(each, answer.token, "waiting", "") for each in answer.claims), want=0)
    long, large = (await shard.turn(max_bytes=1 << 30)).journals
    assert long.length == 1200
    assert long.entries == [f"entry {n}" for n in range(len(long.entries))]
    assert 500 <= len(long.entries) < 600
    assert (large.length, len(large.entries)) == (80, 4), "until a million bytes are read"


async def test_what_a_claim_brings_counts_as_bytes_of_the_call(shard: Shard) -> None:
    await shard.add(*(row(job) for job in "abcd"))
    answer = await shard.turn()
    for job in "abcd":
        await shard.append(job, answer.token, 0, "." * 1000)
    await shard.turn(*(settle(each, answer.token, "waiting", "") for each in answer.claims), want=0)
    claimed = [each.id for each in (await shard.turn(max_bytes=1500)).claims]
    assert claimed == ["a", "b"]


async def test_a_claim_that_is_dropped_for_its_lost_body_takes_no_journal_of_another_job(
    shard: Shard,
) -> None:
    await shard.add(row("a", body="." * 300), row("b"))
    answer = await shard.turn()
    await shard.append("b", answer.token, 0, "one")
    await shard.turn(*(settle(each, answer.token, "waiting", "") for each in answer.claims), want=0)
    await shard.command("DEL", shard.key("body", "a"))
    answer = await shard.turn()
    assert [each.id for each in answer.claims] == [each.id for each in answer.journals] == ["b"]


async def test_an_empty_live_text_takes_its_name_away_with_the_entry(shard: Shard) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    await shard.append("a", token, 0, live={"state": "1", "saved/x": "2"})
    for _ in range(2):  # the second one is a repeat
        assert await shard.append("a", token, 0, "one", live={"saved/x": "", "saved/y": ""}) == ("ok", 0)
    assert await shard.command("HKEYS", shard.key("live", "a")) == ["state"]
    await shard.append("a", token, 1, live={"state": ""})
    assert await shard.command("EXISTS", shard.key("live", "a")) == 0


async def test_another_programs_value_in_the_place_of_live_texts_goes(shard: Shard) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    await shard.command("SET", shard.key("live", "a"), "foreign")
    assert await shard.append("a", token, 0, "one", live={"state": "1"}) == ("ok", 0)
    assert await shard.store.journals.live("a", "state") == "1"


async def test_a_full_server_takes_entries(shard: Shard) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    await shard.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert await shard.append("a", token, 0, "one", live={"state": "1"}) == ("ok", 0)
    finally:
        await shard.command("CONFIG", "SET", "maxmemory", "0")
    assert await _journal(shard) == ["one"]


async def test_a_damaged_record_with_a_journal_leaves_nothing_behind_in_the_end(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.append("a", answer.token, 0, "one")
    await shard.turn(settle(answer.claims[0], answer.token, "waiting", ""), want=0)
    await shard.cut("a", 5)
    assert (await shard.turn()).claims == []
    assert await shard.state("a") == "failed"
    assert await _journal(shard) == ["one"]
    shard.now += 8 * 86_400_000
    await shard.sweep(SweepQueue(QUEUE, 0, 1, 0, 1))
    assert await _leftovers(shard) == 0


async def test_a_journal_that_keeps_its_newest_entries_counts_the_ones_that_are_gone(shard: Shard) -> None:
    await shard.add(row("a"))
    token = await _claim(shard, "a")
    for place in range(5):
        cut = str(max(0, place + 1 - 2))
        assert await shard.append("a", token, place, f"{place}", live={"x": "1", "#cut": cut}) == ("ok", 0)
    assert await _journal(shard) == ["3", "4"]
    assert await shard.append("a", token, 4, "4", live={"#cut": "3"}) == ("ok", 0), "a repeat is known"
    assert await shard.append("a", token, 3, "3", live={"#cut": "2"}) == ("ok", 0), "an older one, too"
    assert await shard.append("a", token, 1, "1", live={"#cut": "0"}) == ("torn", 5)
    assert await shard.append("a", token, 9, "9", live={"#cut": "8"}) == ("behind", 5)
    await shard.turn(settle(_A, token, "waiting", ""), want=0)
    answer = await shard.turn()
    assert [(each.length, each.entries) for each in answer.journals] == [(5, [])]
