"""Sleeping jobs, and the signals that wake them."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import QUEUE, START, Shard, row, settle

from eventbus.errors import StoreRefused
from eventbus.store.calls.journal_store import SentSignal, read_signals
from eventbus.store.scripting.script_rows import ClaimRow


async def _claim(shard: Shard, job: str = "a") -> tuple[ClaimRow, str]:
    answer = await shard.turn()
    (claim,) = answer.claims
    assert claim.id == job
    return claim, answer.token


async def _sleep(shard: Shard, *, until: int = -1, knows: int | str = "", job: str = "a") -> None:
    """Claim a job and let it sleep: at most `until` ms, until a signal comes beyond those that it `knows`."""
    claim, token = await _claim(shard, job)
    await shard.turn(settle(claim, token, "suspended", str(knows), delay=until), want=0)


async def _inbox(shard: Shard) -> list[SentSignal]:
    (journal,) = (await shard.turn()).journals
    return read_signals(journal.signals)


async def test_a_job_sleeps_for_a_time(shard: Shard) -> None:
    await shard.add(row("a"))
    await _sleep(shard, until=500)
    assert await shard.state("a") == "delayed"
    assert (await shard.turn()).next_due == START + 500
    shard.now += 499
    assert (await shard.turn()).claims == []
    shard.now += 1
    claim, _ = await _claim(shard)
    assert (claim.attempts, claim.stalls) == (0, 0)
    assert await shard.command("EXISTS", shard.key("log", "a")) == 0, "sleeping is no error"


async def test_a_signal_does_not_wake_who_listens_to_none(shard: Shard) -> None:
    await shard.add(row("a"))
    await _sleep(shard, until=500)
    assert await shard.signal("a") == "sent"
    assert (await shard.turn()).claims == []
    shard.now += 500
    assert [each.name for each in await _inbox(shard)] == ["go"]


@pytest.mark.parametrize("until", [-1, 500])
async def test_a_signal_wakes_a_job_that_listens(shard: Shard, until: int) -> None:
    await shard.add(row("a"))
    await _sleep(shard, until=until, knows=0)
    assert await shard.state("a") == ("waiting-children" if until < 0 else "delayed")
    assert (await shard.turn()).claims == []
    assert await shard.signal("a", "verdict", '{"ok": true}', signal="s1") == "sent"
    assert await shard.members("delayed") == []
    assert await shard.members("due", "") == []
    answer = await shard.turn()
    (journal,) = answer.journals
    assert journal.heard == 1
    assert read_signals(journal.signals) == [SentSignal("s1", 1, "verdict", '{"ok": true}')]
    assert [each.id for each in answer.claims] == ["a"]


async def test_a_signal_wakes_a_worker(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.announce()
    await _sleep(shard, knows=0)
    await shard.turn()
    await shard.signal("a")
    assert await shard.members("wake", "pool") == [QUEUE]


@pytest.mark.parametrize("until", [-1, 500])
async def test_a_signal_that_came_before_the_sleep_wakes_at_once_unless_it_was_known(
    shard: Shard, until: int
) -> None:
    await shard.add(row("a"))
    claim, token = await _claim(shard)
    await shard.signal("a")
    answer = await shard.turn(settle(claim, token, "suspended", "0", delay=until))
    assert [each.id for each in answer.claims] == ["a"], "in the same call"
    await shard.turn(settle(claim, answer.token, "suspended", "1", delay=until))
    assert await shard.state("a") != "waiting", "it knows of the one"
    await shard.signal("a")
    assert [each.order for each in await _inbox(shard)] == [1, 2]


async def test_a_signal_stays_until_an_entry_takes_it(shard: Shard) -> None:
    await shard.add(row("a"))
    claim, token = await _claim(shard)
    await shard.signal("a", signal="s1")
    await shard.signal("a", signal="s2")
    await shard.turn(settle(claim, token, "waiting", ""), want=0)
    answer = await shard.turn()
    assert [each.id for each in read_signals(answer.journals[0].signals)] == ["s1", "s2"]
    await shard.append("a", answer.token, 0, "took s1", taken=["s1"])
    await shard.append("a", answer.token, 0, "took s1", taken=["s1"])  # once more
    await shard.turn(settle(claim, answer.token, "waiting", ""), want=0)
    (journal,) = (await shard.turn()).journals
    assert ([each.id for each in read_signals(journal.signals)], journal.heard) == (["s2"], 2)
    assert await shard.command("HGET", shard.key("inbox", "a"), "#b") == str(len("2 go 1"))


async def test_a_signal_that_is_sent_twice_is_one(shard: Shard) -> None:
    await shard.add(row("a"))
    await _sleep(shard, knows=0)
    assert await shard.signal("a", signal="s1") == "sent"
    assert await shard.signal("a", signal="s1") == "sent"
    answer = await shard.turn()
    assert len(answer.claims) == 1
    assert len(read_signals(answer.journals[0].signals)) == 1
    assert answer.journals[0].heard == 1


async def test_a_signal_to_an_unknown_or_ended_job_is_refused(shard: Shard) -> None:
    assert await shard.signal("a") == "unknown"
    await shard.add(row("a"))
    await shard.run("completed")
    assert await shard.signal("a") == "ended"
    assert await shard.command("EXISTS", shard.key("inbox", "a")) == 0


async def test_a_full_inbox_refuses(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    for n in range(1000):
        assert await shard.signal("a", signal=f"s{n}") == "sent"
    assert await shard.signal("a") == "full"
    assert await shard.signal("a", signal="s5") == "sent", "that one is there"
    assert await shard.signal("b", payload="." * (1 << 20)) == "sent", "one of any size"
    assert await shard.signal("b") == "full"
    answer = await shard.turn(max_bytes=1 << 30)
    await shard.append("a", answer.token, 0, "took two", taken=["s1", "s2"])
    assert [await shard.signal("a") for _ in range(3)] == ["sent", "sent", "full"]


async def test_a_full_server_refuses_signals_and_lets_jobs_sleep(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn()
    await shard.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreRefused, match="maxmemory"):
            await shard.signal("a")
        claim = ClaimRow("a", 1, "", 0, 0, 0, 0, "")
        answer = await shard.turn(settle(claim, "w:1", "suspended", "0", delay=-1), want=0)
        assert answer.lost == []
    finally:
        await shard.command("CONFIG", "SET", "maxmemory", "0")
    assert await shard.state("a") == "waiting-children"
    assert await shard.signal("a") == "sent"
    await _claim(shard)


async def test_another_programs_value_in_the_place_of_the_inbox_is_told(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.command("SET", shard.key("inbox", "a"), "foreign")
    assert await shard.signal("a") == "foreign"
    await shard.run("completed")
    await shard.command("DEL", shard.key("inbox", "a"))


@pytest.mark.parametrize("until", [-1, 500])
async def test_a_sleeping_job_is_cancelled_at_once(shard: Shard, until: int) -> None:
    await shard.add(row("a"))
    await _sleep(shard, until=until, knows=0)
    assert await shard.cancel("a") == ["ended"]
    assert await shard.state("a") == "cancelled"
    assert await shard.members("due", "") == []
    assert await shard.signal("a") == "ended"


async def test_a_signal_that_a_failover_lost_does_not_let_the_next_one_be_missed(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.signal("a")
    claim, token = await _claim(shard)
    await shard.command("DEL", shard.key("inbox", "a"))  # as a failover may
    await shard.signal("a")
    await shard.command("HSET", shard.key("inbox", "a"), "#", 0)
    answer = await shard.turn(settle(claim, token, "suspended", "1", delay=-1))
    assert [each.id for each in answer.claims] == ["a"], "what it knows does not fit, so it looks again"


async def test_a_foreign_value_in_the_place_of_the_delayed_jobs_does_not_keep_a_signal_from_waking(
    shard: Shard,
) -> None:
    await shard.add(row("a"))
    await _sleep(shard, until=500, knows=0)
    await shard.command("DEL", shard.key("delayed", QUEUE))
    await shard.command("SET", shard.key("delayed", QUEUE), "foreign")
    assert await shard.signal("a") == "sent"
    await _claim(shard)
    await shard.command("DEL", shard.key("delayed", QUEUE))


async def test_a_job_that_a_signal_woke_was_due_then(shard: Shard) -> None:
    await shard.add(row("a"))
    await _sleep(shard, until=50_000, knows=0)
    shard.now += 10
    await shard.signal("a")
    claim, _ = await _claim(shard)
    assert -claim.due == shard.now


async def test_a_sleep_forgets_attempts_and_stalls(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn()
    shard.now += 30_000
    await shard.rescue()
    await shard.run("delayed", text="{}", attempts=3)
    await _sleep(shard, until=10)
    shard.now += 10
    claim, _ = await _claim(shard)
    assert (claim.attempts, claim.stalls) == (0, 0)


async def test_a_retry_after_a_sleep_is_not_cut_short_by_a_signal(shard: Shard) -> None:
    await shard.add(row("a"))
    await _sleep(shard, knows=0)
    await shard.signal("a")
    claim, token = await _claim(shard)
    await shard.turn(settle(claim, token, "delayed", "{}", attempts=1, delay=700), want=0)
    assert await shard.signal("a") == "sent"
    assert (await shard.turn()).claims == []
    shard.now += 700
    await _claim(shard)


async def test_a_signal_to_a_job_that_waits_or_runs_does_not_place_it_twice(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.signal("a")
    assert await shard.members("ready") == ["a"]
    claim, token = await _claim(shard)
    await shard.signal("a")
    assert (await shard.turn()).claims == []
    await shard.turn(settle(claim, token), want=0)
    assert await shard.state("a") == "completed"


@pytest.mark.parametrize("priority", [0, 5])
async def test_a_woken_job_has_its_priority(shard: Shard, priority: int) -> None:
    await shard.add(row("a", priority=priority))
    await _sleep(shard, knows=0)
    await shard.add(row("b"))
    await shard.signal("a")
    order = [each.id for each in (await shard.turn()).claims]
    assert order == ["b", "a"]


async def _told(shard: Shard, worker: str) -> list[str]:
    return await shard.command("ZRANGE", shard.key("control", worker), 0, -1)


async def test_the_holder_of_a_job_that_runs_and_listens_is_told_of_each_signal(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.signal("a")
    _, token = await _claim(shard)
    assert await shard.store.journals.listen("a", token) == 1, "the signals of before are counted"
    assert await _told(shard, "w") == []
    assert await shard.signal("a", signal="s1") == "sent"
    assert await _told(shard, "w") == ["signal:a"]
    await shard.command("DEL", shard.key("control", "w"))
    assert await shard.signal("a", signal="s1") == "sent"
    assert await _told(shard, "w") == [], "a signal that is sent again is told once"
    assert await shard.store.journals.listen("a", token) == 2
    await shard.signal("a", signal="s2")
    assert await _told(shard, "w") == ["signal:a"]


async def test_nobody_is_told_of_signals_to_a_job_that_does_not_listen(shard: Shard) -> None:
    await shard.add(row("a"))
    claim, token = await _claim(shard)
    await shard.signal("a", signal="s1")
    assert await _told(shard, "w") == []
    assert await shard.store.journals.listen("a", "another:1") == -1
    await shard.signal("a", signal="s2")
    assert await _told(shard, "w") == [], "another one does not hold it"
    await shard.store.journals.listen("a", token)
    await shard.turn(settle(claim, token, "waiting"), want=0)
    await shard.signal("a", signal="s3")
    assert await _told(shard, "w") == [], "nobody holds it"
    await _claim(shard)
    await shard.signal("a", signal="s4")
    assert await _told(shard, "w") == [], "its next holder has not asked for it"


async def test_what_a_job_that_slept_said_while_it_ran_is_forgotten(shard: Shard) -> None:
    await shard.add(row("a"))
    claim, token = await _claim(shard)
    await shard.store.journals.listen("a", token)
    await shard.turn(settle(claim, token, "suspended", "0"), want=0)
    assert await shard.command("HGET", shard.key("more", "a"), "hears") is None
    await shard.signal("a")
    assert await _told(shard, "w") == []
    await _claim(shard)


async def test_a_trigger_is_taken_only_while_it_is_accepted_and_closes_the_place(shard: Shard) -> None:
    await shard.add(row("a"))
    claim, token = await _claim(shard)
    assert await shard.signal("a", "!ok", signal="s0") == "unwanted"
    await shard.append("a", token, 0, "one", live={"accepts": "!ok !no"})
    await shard.turn(settle(claim, token, "suspended", "0", delay=-1), want=0)
    assert await shard.signal("a", "!o", signal="s1") == "unwanted", "whole words count"
    assert await shard.state("a") == "waiting-children", "a refused one wakes nobody"
    assert await shard.signal("a", "!ok", "1", signal="s2") == "sent"
    assert await shard.signal("a", "!no", "2", signal="s3") == "unwanted"
    assert await shard.signal("a", "!ok", "1", signal="s2") == "sent", "a repeat"
    assert [each.id for each in await _inbox(shard)] == ["s2"]


async def test_a_late_repeat_of_a_trigger_that_was_taken_fires_nothing(shard: Shard) -> None:
    await shard.add(row("a"))
    claim, token = await _claim(shard)
    await shard.append("a", token, 0, "one", live={"accepts": "!ok"})
    assert await shard.signal("a", "!ok", signal="s1") == "sent"
    await shard.append("a", token, 1, "two", live={"accepts": "!ok"}, taken=["s1"])
    assert await shard.signal("a", "!ok", signal="s1") == "sent"
    await shard.turn(settle(claim, token, "waiting", ""), want=0)
    assert await _inbox(shard) == []


async def test_a_late_repeat_of_a_trigger_that_ended_its_job_is_known(shard: Shard) -> None:
    await shard.add(row("a"))
    claim, token = await _claim(shard)
    await shard.append("a", token, 0, "one", live={"accepts": "!ok"})
    assert await shard.signal("a", "!ok", signal="s1") == "sent"
    await shard.append("a", token, 1, "two", live={"accepts": ""}, taken=["s1"])
    await shard.turn(settle(claim, token, "completed", ""), want=0)
    assert await shard.signal("a", "!ok", signal="s1") == "sent"
    assert await shard.signal("a", "!ok", signal="s2") == "ended"


async def test_a_late_repeat_of_a_signal_that_was_taken_comes_to_no_second_wait(shard: Shard) -> None:
    await shard.add(row("a"))
    claim, token = await _claim(shard)
    assert await shard.signal("a", signal="s1") == "sent"
    await shard.append("a", token, 0, "took s1", taken=["s1"])
    assert await shard.signal("a", signal="s1") == "sent"
    assert await shard.signal("a", signal="s2") == "sent"
    await shard.turn(settle(claim, token, "waiting", ""), want=0)
    (journal,) = (await shard.turn()).journals
    assert [each.id for each in read_signals(journal.signals)] == ["s2"]
    assert journal.heard == 2


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_a_late_repeat_of_a_signal_that_ended_its_job_is_known(shard: Shard, state: str) -> None:
    await shard.add(row("a"))
    claim, token = await _claim(shard)
    assert await shard.signal("a", signal="s1") == "sent"
    await shard.append("a", token, 0, "took s1", taken=["s1"])
    assert await shard.signal("a", signal="s2") == "sent"
    await shard.turn(settle(claim, token, state, "{}"), want=0)
    assert await shard.signal("a", signal="s1") == "sent"
    assert await shard.signal("a", signal="s2") == "sent", "one that nobody took"
    assert await shard.signal("a", signal="s3") == "ended"


@pytest.mark.parametrize(
    "make",
    [
        lambda n: f"{n:016x}",
        lambda n: f"{n} " + "x" * 250,
        lambda n: f"{n}" + "ü" * 120,
        lambda n: f"a\tb\n{n}",
    ],
    ids=["library", "long", "bytes", "spaces"],
)
async def test_the_last_100_signals_are_known_whatever_their_ids(shard: Shard, make: Any) -> None:
    await shard.add(row("a"))
    _, token = await _claim(shard)
    ids = [make(n) for n in range(300)]
    for each in ids:
        assert await shard.signal("a", signal=each) == "sent"
    await shard.append("a", token, 0, "took all", taken=ids)
    for each in ids[-100:]:
        assert await shard.signal("a", signal=each) == "sent"
    _, left = await shard.store.journals.inbox("a")
    assert left == [], "all of them are known"
    assert await shard.signal("a", signal=ids[0]) == "sent"
    _, left = await shard.store.journals.inbox("a")
    assert [each.id for each in left] == [ids[0]], "what is remembered is bounded"
    kept = await shard.command("HGET", shard.key("live", "a"), "#taken")
    assert len(kept) <= 4100


async def test_the_words_of_an_older_release_are_known_beside_new_ones(shard: Shard) -> None:
    await shard.add(row("a"))
    _, token = await _claim(shard)
    await shard.append("a", token, 0, "one", live={"accepts": "!ok", "#taken": "s2 s1"})
    assert await shard.signal("a", "!ok", signal="s1") == "sent"
    assert await shard.signal("a", "!ok", signal="s3") == "sent"
    _, inbox = await shard.store.journals.inbox("a")
    assert [each.id for each in inbox] == ["s3"]
    assert await shard.command("HGET", shard.key("live", "a"), "#taken") == "s3 s2 s1"
