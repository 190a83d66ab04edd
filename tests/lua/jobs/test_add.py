"""add.lua: new jobs, their order and their times; what a repeat changes (nothing); groups, limits, wakes."""

from __future__ import annotations

import random

import pytest
from drivers.shards import QUEUE, START, Shard, add_queue, row, turn_queue

from eventbus.store.scripting.packing import AddRows
from eventbus.store.scripting.script_rows import AddVerdict


async def _dump(shard: Shard) -> dict[str, str]:
    """Everything under the test's prefix, as bytes of the server's own format, without expiries."""
    names = await shard.command("KEYS", f"{shard.store.keys.root}:*")
    return {name: await shard.command("DUMP", name) for name in names}


async def _order(shard: Shard, queue: str = QUEUE) -> list[str]:
    return [claim.id for claim in (await shard.turn(queues=[turn_queue(queue)])).claims]


async def test_a_new_job_waits_with_its_body_and_the_time_of_the_server(shard: Shard) -> None:
    assert await shard.add(row("a", body="{}")) == []
    record = await shard.record("a")
    assert (record["state"], record["queue"], record["body"]) == ("waiting", QUEUE, "{}")
    assert record["created"] == str(START)
    assert await shard.members("ready") == ["a"]


async def test_without_a_given_time_the_servers_counts(shard: Shard) -> None:
    await shard.store.add("em", [add_queue()], AddRows([row("a")]), deadline=1e12)
    seconds, _ = await shard.command("TIME")
    assert abs(int((await shard.record("a"))["created"]) / 1000 - int(seconds)) < 60


@pytest.mark.parametrize("now", [1_700_000_000_000, 2_000_000_000_000, 1_799_999_999_999])
async def test_round_times_come_back_as_whole_numbers(shard: Shard, now: int) -> None:
    shard.now = now
    await shard.add(row("a"), row("b", delay=1000))
    shard.now = now + 1000
    claims = (await shard.turn()).claims
    assert [(claim.id, claim.created, claim.due) for claim in claims] == [
        ("a", now, now),
        ("b", now, now + 1000),
    ]


async def test_a_repeated_add_changes_nothing(shard: Shard) -> None:
    await shard.announce(group="audit")
    rows = [
        row("a"),
        row("b", body="x" * 500),
        row("c", delay=500),
        row("d", key="k", print="p"),
        row("e", priority=3),
    ]
    await shard.add(*rows)
    before = await _dump(shard)
    shard.now += 50
    assert await shard.add(*rows) == []
    assert await _dump(shard) == before


async def test_a_repeated_add_changes_nothing_after_its_jobs_were_claimed_or_ended(shard: Shard) -> None:
    rows = [row("a"), row("b", key="k", print="p"), row("c"), row("d")]
    await shard.add(*rows)
    await shard.run("completed", "failed")
    await shard.add(row("e"), row("f"))
    await shard.turn()
    before = await _dump(shard)
    shard.now += 50
    assert await shard.add(*rows, row("e"), row("f")) == []
    assert await _dump(shard) == before


async def test_lower_priorities_run_first_over_the_whole_range(shard: Shard) -> None:
    priorities = [-4000, -3999, -1, 0, 1, 3999, 4000]
    mixed = random.Random(7).sample(priorities, len(priorities))
    await shard.add(*(row(str(each), priority=each) for each in mixed))
    assert await _order(shard) == [str(each) for each in priorities]


@pytest.mark.parametrize("priority", [-4000, 0, 4000])
async def test_jobs_of_one_priority_run_in_the_order_of_their_adds(shard: Shard, priority: int) -> None:
    names = [f"j{i:03}" for i in range(300)]
    shuffled = random.Random(3).sample(names, len(names))
    await shard.add(*(row(each, priority=priority) for each in shuffled[:200]))
    await shard.add(*(row(each, priority=priority) for each in shuffled[200:]))
    assert await _order(shard) == shuffled


async def test_a_lifo_job_goes_to_the_head_of_its_priority_and_not_beyond(shard: Shard) -> None:
    await shard.add(row("a"), row("b"), row("urgent", priority=-1), row("late", priority=1))
    await shard.add(row("c", lifo=1))
    await shard.add(row("d", lifo=1))
    assert await _order(shard) == ["urgent", "d", "c", "a", "b", "late"]


async def test_a_delayed_job_is_due_after_its_delay(shard: Shard) -> None:
    await shard.add(row("a", delay=1500))
    assert await shard.state("a") == "delayed"
    assert await shard.score("delayed", QUEUE, "a") == START + 1500
    assert await shard.members("ready") == []


async def test_an_absolute_time_is_due_then_whatever_the_server_shows_now(shard: Shard) -> None:
    await shard.add(row("a", due=START + 77))
    assert await shard.score("delayed", QUEUE, "a") == START + 77
    assert (await shard.record("a"))["due"] == str(START + 77)


@pytest.mark.parametrize("when", [{"due": START - 1}, {"due": START}, {"delay": 0}, {"due": 1}])
async def test_what_is_due_already_is_ready_at_once(shard: Shard, when: dict[str, int]) -> None:
    await shard.add(row("a", **when))
    assert await shard.members("ready") == ["a"]
    assert await shard.members("delayed") == []


async def test_an_emission_makes_one_job_for_the_default_group_and_one_for_each_other(shard: Shard) -> None:
    await shard.announce(group="audit")
    await shard.store.groups.add(QUEUE, "mail")
    await shard.add(row("a"))
    assert await shard.members("ready") == ["a"]
    assert await shard.members("ready", f"{QUEUE}@audit") == ["a@audit"]
    assert await shard.members("ready", f"{QUEUE}@mail") == ["a@mail"]


async def test_only_the_default_groups_job_answers_the_emitter(shard: Shard) -> None:
    await shard.announce(group="audit")
    await shard.add(row("a"), row("b", reply=0))
    assert (await shard.record("a"))["reply"] == "em"
    assert "reply" not in await shard.record("b")
    assert "reply" not in await shard.record("a@audit")


async def test_an_event_without_a_default_group_makes_jobs_for_its_groups_alone(shard: Shard) -> None:
    await shard.announce(group="audit")
    await shard.add(row("a"), queues=[add_queue(has_default=0)])
    assert await shard.members("ready") == []
    assert await shard.members("ready", f"{QUEUE}@audit") == ["a@audit"]


async def test_a_full_queue_refuses_what_is_over_its_limit_and_says_so(shard: Shard) -> None:
    queues = [add_queue(max_waiting=3)]
    await shard.add(row("a"), queues=queues)
    rows = [row(each, key=each, print="p") for each in "bcde"]
    verdicts = await shard.add(*rows, queues=queues)
    assert verdicts == [
        AddVerdict(2, "full", "d", "unserved", QUEUE),
        AddVerdict(3, "full", "e", "unserved", QUEUE),
    ]
    assert await shard.members("ready") == ["a", "b", "c"]
    assert await shard.state("d") is None
    assert await shard.command("EXISTS", shard.key("key", f"{QUEUE}:d")) == 0


async def test_a_refused_row_is_refused_in_all_its_groups(shard: Shard) -> None:
    queues = [add_queue(max_waiting=1)]
    await shard.add(row("a"), queues=queues)
    await shard.announce(group="audit")
    verdicts = await shard.add(row("b"), queues=queues)
    assert [each.word for each in verdicts] == ["full"]
    assert await shard.members("ready", f"{QUEUE}@audit") == []


async def test_a_refusal_names_the_queue_that_is_full_and_says_whether_it_is_served(shard: Shard) -> None:
    queues = [add_queue(max_waiting=1)]
    await shard.store.groups.add(QUEUE, "audit")
    await shard.add(row("a"), queues=queues)
    (claim,) = (await shard.turn()).claims
    assert await shard.add(row("b"), queues=queues) == [
        AddVerdict(0, "full", "b", "unserved", f"{QUEUE}@audit")
    ]
    assert claim.id == "a"
    await shard.announce(group="audit")
    (verdict,) = await shard.add(row("c"), queues=queues)
    assert (verdict.state, verdict.text) == ("served", f"{QUEUE}@audit")
    shard.now += 20_001  # its worker was killed
    (verdict,) = await shard.add(row("d"), queues=queues)
    assert (verdict.state, verdict.text) == ("unserved", f"{QUEUE}@audit")


async def test_a_full_queue_still_takes_repeats_and_delayed_jobs(shard: Shard) -> None:
    queues = [add_queue(max_waiting=1)]
    await shard.add(row("a"), queues=queues)
    assert await shard.add(row("a"), row("b", delay=10), queues=queues) == []


async def test_a_large_body_has_a_key_of_its_own_and_comes_with_the_claim(shard: Shard) -> None:
    body = '"' + "x" * 5000 + '"'
    await shard.add(row("a", body=body), row("b", body="y" * 256), row("c", body="z" * 257))
    assert await shard.command("GET", shard.key("body", "a")) == body
    assert [await shard.command("EXISTS", shard.key("body", each)) for each in "bc"] == [0, 1]
    assert [claim.body for claim in (await shard.turn()).claims] == [body, "y" * 256, "z" * 257]


async def test_a_record_stays_small_through_its_whole_life(shard: Shard) -> None:
    await shard.announce(group="g" * 12)
    job = f"0-{'e' * 12}-00000001"
    given = row(job, body="x" * 4000, key="k" * 48, print="p" * 16, priority=-4000, delay=1)
    await shard.add(given, emitter="e" * 12)
    await shard.add(row("other", key="k" * 48, print="p" * 16), emitter="f" * 12)
    shard.now += 1
    await shard.run("delayed", text="e" * 4000, worker="w" * 24, attempts=1)
    await shard.run("completed", text="r" * 9000, worker="w" * 24, attempts=2)
    for each in (job, f"{job}@{'g' * 12}"):
        assert await shard.command("STRLEN", shard.key("job", each)) <= 128
        assert await shard.command("OBJECT", "ENCODING", shard.key("more", each)) in ("listpack", "ziplist")


async def test_an_add_wakes_every_live_pool_when_the_queue_was_empty(shard: Shard) -> None:
    await shard.announce("one")
    await shard.announce("two")
    await shard.add(row("a"))
    assert await shard.members("wake", "one") == [QUEUE]
    assert await shard.members("wake", "two") == [QUEUE]


async def test_an_add_to_a_queue_with_waiting_jobs_wakes_nobody(shard: Shard) -> None:
    await shard.announce("one")
    await shard.add(row("a"))
    await shard.command("DEL", shard.key("wake", "one"))
    await shard.add(row("b"))
    assert await shard.members("wake", "one") == []


async def test_a_pool_that_is_silent_for_a_minute_is_not_woken(shard: Shard) -> None:
    await shard.announce("silent")
    shard.now += 60_001
    await shard.announce("live")
    await shard.add(row("a"))
    assert await shard.members("wake", "silent") == []
    assert await shard.members("wake", "live") == [QUEUE]


async def test_a_delayed_job_that_becomes_the_earliest_wakes_a_worker(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a", delay=1000))
    assert await shard.members("wake", "pool") == [QUEUE]
    await shard.command("DEL", shard.key("wake", "pool"))
    await shard.add(row("b", delay=1000), row("c", delay=2000))
    assert await shard.members("wake", "pool") == []
    await shard.add(row("d", delay=999))
    assert await shard.members("wake", "pool") == [QUEUE]


async def test_a_wake_that_nobody_takes_goes_by_itself(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a"))
    assert 0 < await shard.ttl("wake", "pool") <= 120_000
    assert 0 < await shard.ttl("pools", QUEUE) <= 120_000


async def test_each_add_call_takes_the_rows_of_several_queues(shard: Shard) -> None:
    queues = [add_queue("event.a"), add_queue("event.b")]
    await shard.add(row("a", queue=1), row("b", queue=2), row("c", queue=1), queues=queues)
    assert await shard.members("ready", "event.a") == ["a", "c"]
    assert await shard.members("ready", "event.b") == ["b"]
