"""retry.lua: a job that has ended waits again, once, whatever meets that."""

from __future__ import annotations

import json

import pytest
from drivers.shards import QUEUE, START, Shard, add_queue, row, settle, turn_queue

from eventbus.store.scripting.script_rows import JOIN, THROTTLE, AnnounceQueue, SweepQueue

_ERROR = json.dumps({"type": "ValueError", "message": "no", "attempts": 2})
_DAY = 86_400_000


async def retry(shard: Shard, *jobs: str, call: str = "", states: tuple[str, ...] = ()) -> list[str]:
    return await shard.store.controls.retrials.retry(
        jobs, states=states or ("failed", "cancelled"), call=call, now=shard.now
    )


async def _fail(shard: Shard, job: str = "a", state: str = "failed", **given: object) -> None:
    await shard.add(row(job, **given))
    await shard.run(state, text=_ERROR, attempts=2)


async def _claimed(shard: Shard) -> list[str]:
    return [each.id for each in (await shard.turn()).claims]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_a_job_that_ended_waits_again_as_if_it_were_new(shard: Shard, state: str) -> None:
    await shard.announce()
    await _fail(shard, state=state, body="x" * 300)
    before = await shard.record("a")
    shard.now += 1000
    assert await retry(shard, "a") == ["retried"]
    assert await shard.members(state) == []
    assert await shard.members("wake", "pool") == [QUEUE]
    look = await shard.store.inspection.job("a")
    assert (look.fields["state"], look.fields.get("attempts", "0"), look.text) == ("waiting", "0", "")
    (ended,) = look.log
    times = {"due": 0, "began": START, "ended": START, "worker": "w", "kind": "failed"}
    assert json.loads(ended) == {**json.loads(_ERROR), **times}, "how it ended stands in its log"
    assert look.fields["first"] == str(START), "it was claimed first in the run before"
    (claim,) = (await shard.turn()).claims
    assert (claim.body, claim.attempts, claim.stalls) == (before["body"], 0, 0)
    assert (claim.created, claim.due) == (START, shard.now)


async def test_a_retried_job_ends_as_any_other_and_nobody_who_knew_is_told_again(shard: Shard) -> None:
    await shard.open_replies()
    await _fail(shard)
    assert len(await shard.replies()) == 1
    await retry(shard, "a")
    await shard.run("completed", text="7")
    assert await shard.state("a") == "completed"
    assert len(await shard.replies()) == 1, "its emitter got the failure, and no second outcome"
    (outcome,) = await shard.store.look("em", ["a"], join=False)
    assert (outcome.state, outcome.text) == ("completed", "7")


async def test_who_asks_after_the_retry_gets_the_next_outcome(shard: Shard) -> None:
    await shard.open_replies("late")
    await _fail(shard)
    await retry(shard, "a")
    await shard.store.look("late", ["a"], join=True)
    await shard.run("completed", text="7")
    assert await shard.replies("late") == [[("a", "completed", 1, "7")]]


async def test_answer_lost_the_same_call_is_answered_the_same_and_does_nothing_more(shard: Shard) -> None:
    await _fail(shard)
    assert await retry(shard, "a", call="c1") == ["retried"]
    assert await retry(shard, "a", call="c1") == ["retried"]
    assert await shard.members("ready") == ["a"]
    await shard.run("failed", text=_ERROR, attempts=2)
    assert await retry(shard, "a", call="c1") == ["retried"], "the answer was very late"
    assert await shard.state("a") == "failed", "that call has had its run"
    assert await retry(shard, "a", call="c2") == ["retried"]
    assert await _claimed(shard) == ["a"]


async def test_two_at_once_the_second_finds_a_job_that_waits_or_runs(shard: Shard) -> None:
    await _fail(shard)
    assert await retry(shard, "a", "a") == ["retried", "retried"]
    assert await retry(shard, "a") == ["waiting"]
    assert await shard.members("ready") == ["a"]
    assert await _claimed(shard) == ["a"]
    assert await retry(shard, "a") == ["waiting"], "a worker holds it"
    assert await _claimed(shard) == []


async def test_swept_first_the_job_is_unknown_and_retried_first_it_stays(shard: Shard) -> None:
    queue = SweepQueue(QUEUE, 0, 0, 0, 0)
    await _fail(shard, "a")
    await _fail(shard, "b")
    shard.now += 200_000
    assert await retry(shard, "a") == ["retried"]
    assert await shard.sweep(queue) == 1
    assert await retry(shard, "b") == ["unknown"]
    assert await _claimed(shard) == ["a"]


async def test_a_job_in_another_state_stays_as_it_is(shard: Shard) -> None:
    await shard.add(row("done"))
    await shard.run("completed")
    await shard.add(row("waits"), row("late", delay=60_000))
    assert await retry(shard, "done", "waits", "late", "none") == [
        *("completed", "waiting", "delayed", "unknown")
    ]
    await shard.cancel("waits")
    assert await retry(shard, "waits", states=("failed",)) == ["cancelled"]


async def test_a_job_cancelled_in_its_line_comes_back_once(shard: Shard) -> None:
    await shard.add(*(row(name) for name in "abc"))
    await shard.cancel("b")
    assert await retry(shard, "b") == ["retried"]
    assert await shard.members("ready") == ["a", "c", "b"]
    assert await _claimed(shard) == ["a", "c", "b"]
    assert await _claimed(shard) == []


async def test_priority_limit_key_and_retention_of_its_own_stay(shard: Shard) -> None:
    await _fail(shard, "a", priority=5, keep="0,600000")
    assert await shard.members("leaving") == ["a"]
    await retry(shard, "a")
    record = await shard.record("a")
    assert (record["priority"], record["keep"]) == ("5", "0,600000")
    assert await shard.members("leaving") == []
    assert await shard.members("ready+") == ["a"]
    await _fail(shard, "b", limit="t1")
    await retry(shard, "b")
    assert await shard.command("LRANGE", shard.key("lane", f"{QUEUE}:t1"), 0, -1) == ["b!1"]


async def test_its_key_stands_for_it_again_and_an_emission_joins_it(shard: Shard) -> None:
    await _fail(shard, "a", key="k", print="p")
    await retry(shard, "a")
    assert await shard.ttl("key", f"{QUEUE}:k") == -1
    (verdict,) = await shard.add(row("b", key="k", print="p", meeting=JOIN))
    assert (verdict.word, verdict.job, verdict.state) == ("joined", "a", "open")
    await shard.run("completed")
    assert await shard.ttl("key", f"{QUEUE}:k") > 0


async def test_a_window_of_a_throttle_stays_as_long_as_it_was(shard: Shard) -> None:
    await _fail(shard, "a", key="k", print="p", meeting=THROTTLE, span=600_000)
    until = await shard.command("HGET", shard.key("key", f"{QUEUE}:k"), "until")
    await retry(shard, "a")
    assert await shard.command("HGET", shard.key("key", f"{QUEUE}:k"), "until") == until


async def test_a_job_whose_key_stands_for_another_one_by_now_is_refused(shard: Shard) -> None:
    await _fail(shard, "a", key="k", print="p")
    await shard.add(row("b", key="k", print="p"))
    assert await retry(shard, "a") == ["key"]
    await shard.run("failed", text=_ERROR)
    assert await retry(shard, "a", "b") == ["key", "retried"]


async def test_a_key_whose_time_is_over_is_kept_anew_and_for_its_time(shard: Shard) -> None:
    await _fail(shard, "a", key="k", print="p")
    await shard.command("DEL", shard.key("key", f"{QUEUE}:k"))
    assert await retry(shard, "a") == ["retried"]
    assert await shard.command("PTTL", shard.key("key", f"{QUEUE}:k")) == -1
    await shard.run("completed")
    assert await shard.command("PTTL", shard.key("key", f"{QUEUE}:k")) > 0


async def test_a_job_of_a_group_that_was_removed_is_refused(shard: Shard) -> None:
    group = f"{QUEUE}@audit"
    await shard.announce(group="audit")
    await shard.add(row("a"))
    await shard.run("failed", text=_ERROR)
    answer = await shard.turn(queues=[turn_queue(group)])
    assert [each.id for each in answer.claims] == ["a@audit"]
    await shard.cancel("a@audit")
    await shard.renew(("a@audit", answer.token))
    await shard.turn(
        settle(answer.claims[0], answer.token, "failed", _ERROR), queues=[turn_queue(group)], want=0
    )
    await shard.command("SREM", shard.key("groups", QUEUE), "audit")
    assert await retry(shard, "a@audit", "a") == ["ungrouped", "retried"]


async def test_what_cannot_be_read_is_said_to_be_damaged(shard: Shard, planted: set[str]) -> None:
    await _fail(shard)
    await shard.cut("a", 9)
    assert await retry(shard, "a") == ["damaged"]
    await shard.command("SET", shard.key("job", "b"), "foreign")
    planted.add(shard.key("job", "b"))
    assert await retry(shard, "b") == ["damaged"]


async def test_a_queue_that_nobody_serves_takes_a_retry_too(shard: Shard) -> None:
    other = [add_queue("event.other")]
    await shard.add(row("a"), queues=other)
    await shard.cancel("a")
    assert await retry(shard, "a") == ["retried"]
    await shard.store.announce(
        pool="pool", worker="w", queues=[AnnounceQueue("event.other", "event.other", "")], unpark=False
    )
    answer = await shard.turn(queues=[turn_queue("event.other")])
    assert [each.id for each in answer.claims] == ["a"]


async def test_a_retried_job_waits_since_its_retry_and_a_delayed_one_since_it_was_due(shard: Shard) -> None:
    await _fail(shard)
    shard.now += _DAY
    await retry(shard, "a")
    (look,) = await shard.survey()
    assert look.oldest == shard.now
    await _claimed(shard)
    await shard.add(row("b", delay=5_000))
    shard.now += 5_000
    await shard.turn(want=0)
    (look,) = await shard.survey()
    assert look.oldest == shard.now


async def test_a_job_that_nobody_ever_had_has_no_attempt_after_its_retry(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.cancel("a")
    assert await retry(shard, "a") == ["retried"]
    look = await shard.store.inspection.job("a")
    assert (look.log, look.fields.get("first", "")) == ([], "")


async def test_the_key_of_a_retried_job_stands_for_it_again_when_its_time_was_over(shard: Shard) -> None:
    await _fail(shard, key="k", print="p")
    await shard.command("DEL", shard.key("key", f"{QUEUE}:k"))
    assert await retry(shard, "a") == ["retried"]
    (verdict,) = await shard.add(row("b", key="k", print="p"))
    assert (verdict.word, verdict.job) == ("joined", "a")
    assert await _claimed(shard) == ["a"]


async def test_a_cancel_that_is_sent_again_does_not_reach_the_next_run(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    assert await shard.cancel("a", call="c1") == ["asked"]
    await shard.turn(settle(answer.claims[0], answer.token, "cancelled", "{}"), want=0)
    for _ in range(2):
        assert await retry(shard, "a") == ["retried"]
        assert await shard.cancel("a", call="c1") == ["ended"]
        assert await shard.state("a") == "waiting"
        await shard.run("failed", text=_ERROR)
    assert await retry(shard, "a") == ["retried"]
    assert await shard.cancel("a", call="c2") == ["ended"]
    assert await shard.state("a") == "cancelled"
