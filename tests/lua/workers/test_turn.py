"""turn.lua: claims, their order and bounds; settling to each state; promotion; what a repeat gets."""

from __future__ import annotations

import pytest
from drivers.shards import LEASE, QUEUE, START, Shard, add_queue, row, settle, turn_queue

from eventbus.errors import StoreRefused
from eventbus.store.scripting.script_rows import ClaimRow, TurnAnswer


def _ids(answer: TurnAnswer) -> list[str]:
    return [claim.id for claim in answer.claims]


async def _wakes(shard: Shard, pool: str = "pool") -> list[str]:
    return await shard.members("wake", pool)


# claiming


async def test_a_claim_moves_a_job_to_active_under_a_lease_with_the_calls_token(shard: Shard) -> None:
    await shard.add(row("a", body="{}"))
    answer = await shard.turn()
    assert answer.claims == [ClaimRow("a", 1, "{}", 0, 0, START, START, "")]
    assert (answer.now, answer.token) == (START, "w:1")
    assert (await shard.held(), await shard.lease_end()) == (["a"], START + LEASE)
    assert await shard.members("ready") == []
    record = await shard.record("a")
    assert (record["state"], record["token"]) == ("active", "w:1")


async def test_two_workers_never_get_the_same_job(shard: Shard) -> None:
    await shard.add(*(row(str(i)) for i in range(10)))
    first = await shard.turn(worker="one", want=4)
    second = await shard.turn(worker="two", want=100)
    assert _ids(first) + _ids(second) == [str(i) for i in range(10)]


async def test_a_turn_that_wants_nothing_claims_nothing_and_leaves_the_wakes(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a"))
    answer = await shard.turn(want=0)
    assert (answer.claims, answer.more, answer.woken) == ([], [], [])
    assert await _wakes(shard) == [QUEUE]


async def test_a_queue_gives_no_more_than_its_quota(shard: Shard) -> None:
    queues = [add_queue("event.a"), add_queue("event.b")]
    await shard.add(
        *(row(f"a{i}", queue=1) for i in range(5)), *(row(f"b{i}", queue=2) for i in range(5)), queues=queues
    )
    answer = await shard.turn(queues=[turn_queue("event.a", 2), turn_queue("event.b", 0)])
    assert _ids(answer) == ["a0", "a1"]
    assert answer.more == [1]  # a queue without quota is not looked at


async def test_queues_share_what_is_wanted_and_an_empty_one_leaves_its_part_to_the_others(
    shard: Shard,
) -> None:
    names = ["event.a", "event.b", "event.c"]
    rows = [row(f"{name[-1]}{i}", queue=place + 1) for place, name in enumerate(names[:2]) for i in range(20)]
    await shard.add(*rows, queues=[add_queue(name) for name in names])
    answer = await shard.turn(want=12, queues=[turn_queue(name) for name in names])
    taken = [claim.queue for claim in answer.claims]
    assert (taken.count(1), taken.count(2), taken.count(3)) == (8, 4, 0)
    answer = await shard.turn(want=12, queues=[turn_queue(name) for name in names[1::-1]])
    assert [claim.queue for claim in answer.claims] == [1] * 6 + [2] * 6


async def test_a_claim_is_bounded_in_bytes_but_always_brings_one_job(shard: Shard) -> None:
    await shard.add(*(row(str(i), body="x" * 1000) for i in range(5)))
    assert _ids(await shard.turn(max_bytes=0)) == ["0"]
    assert _ids(await shard.turn(max_bytes=1)) == ["1"]
    answer = await shard.turn(max_bytes=1500)
    assert _ids(answer) == ["2", "3"]
    assert answer.more == [1]


async def test_more_names_the_queues_that_still_have_jobs_and_wakes_the_pool_again(shard: Shard) -> None:
    queues = [add_queue("event.a"), add_queue("event.b"), add_queue("event.c")]
    await shard.add(row("a1"), row("a2"), row("b1", queue=2), queues=queues)
    answer = await shard.turn(want=2, queues=[turn_queue(each.queue, 1) for each in queues])
    assert answer.more == [1]
    assert await _wakes(shard) == ["event.a"]
    assert 0 < await shard.ttl("wake", "pool") <= 120_000


async def test_a_turn_takes_the_wakes_of_its_pool_and_not_of_others(shard: Shard) -> None:
    await shard.announce("pool")
    await shard.announce("other")
    await shard.add(row("a"))
    answer = await shard.turn()
    assert answer.woken == [QUEUE]
    assert (await _wakes(shard), await _wakes(shard, "other")) == ([], [QUEUE])


async def test_a_turn_leaves_the_messages_to_its_worker_for_the_blocked_read(shard: Shard) -> None:
    await shard.store.poke("w", "stop")
    await shard.turn()
    assert await shard.members("control", "w") == ["stop"]


@pytest.mark.parametrize("newer", [(0, "0"), (1, "@")], ids=["format", "a flag"])
async def test_a_job_of_a_newer_format_is_parked_and_not_run(shard: Shard, newer: tuple[int, str]) -> None:
    await shard.add(row("a"), row("b"))
    await shard.command("SETRANGE", shard.key("job", "a"), *newer)
    assert _ids(await shard.turn()) == ["b"]
    assert await shard.state("a") == "parked"
    assert await shard.members("parked") == ["a"]
    assert await shard.announce(unpark=True) == 0


# settling


async def test_a_completed_job_keeps_its_result_and_leaves_active(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    shard.now += 5
    await shard.run("completed", text="42")
    assert await shard.held() == []
    assert await shard.members("completed") == ["a", "b"]
    record = await shard.record("a")
    assert (record["state"], record["result"], record["ended"]) == ("completed", "42", str(START + 5))
    assert await shard.score("completed", QUEUE, "a") == START + 5


@pytest.mark.parametrize("length", [2, 256, 257])
@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_a_job_ends_in_the_state_that_it_is_settled_to(shard: Shard, state: str, length: int) -> None:
    await shard.add(row("a"))
    text = '"' + "x" * (length - 2) + '"'
    await shard.run(state, text=text, attempts=3)
    assert await shard.state("a") == state
    assert await shard.members(state) == ["a"]
    assert (await shard.record("a"))["attempts"] == "3"
    assert (await shard.record("a"))["result"] == text
    assert await shard.command("GET", shard.key("result", "a")) == (text if length > 256 else None)


async def test_a_retry_with_a_delay_is_delayed_and_comes_back_with_its_attempts(shard: Shard) -> None:
    await shard.add(row("a", priority=-5))
    answer = await shard.turn()
    late = settle(answer.claims[0], answer.token, "delayed", '{"type":"E"}', attempts=1, delay=1000)
    answer = await shard.turn(late)
    assert answer.next_due == START + 1000
    assert await shard.state("a") == "delayed"
    (kept,) = await shard.command("LRANGE", shard.key("log", "a"), 0, -1)
    times = f'"due":0,"began":{START},"ended":{START},"worker":"w","kind":"failed"'
    assert kept == '{"type":"E",' + times + "}"
    await shard.add(row("b"))
    shard.now += 1000
    await shard.turn(want=0)
    assert await shard.members("ready") == ["a", "b"]  # its priority is kept
    (first, _) = (await shard.turn()).claims
    assert (first.attempts, first.due) == (1, -(START + 1000)), "negative: it has begun before"


async def test_a_retry_without_a_delay_goes_behind_what_waits_at_its_priority(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.add(row("b"), row("low", priority=1))
    await shard.turn(settle(answer.claims[0], answer.token, "delayed", "", attempts=1), want=0)
    assert await shard.members("ready") == ["b", "a", "low"]
    assert await shard.state("a") == "waiting"


@pytest.mark.parametrize("delay", [0, 50])
async def test_a_retried_lifo_job_goes_to_the_head_again(shard: Shard, delay: int) -> None:
    await shard.add(row("a", lifo=1))
    answer = await shard.turn()
    await shard.add(row("b"), row("urgent", priority=-1))
    await shard.turn(settle(answer.claims[0], answer.token, "delayed", "", attempts=1, delay=delay), want=0)
    shard.now += delay
    await shard.turn(want=0)
    assert await shard.members("ready") == ["urgent", "a", "b"]


async def test_the_errors_of_at_most_fifty_attempts_are_kept(shard: Shard) -> None:
    await shard.add(row("a"))
    for attempt in range(55):
        answer = await shard.turn()
        await shard.turn(
            settle(answer.claims[0], answer.token, "delayed", str(attempt), attempts=attempt + 1), want=0
        )
    log = await shard.command("LRANGE", shard.key("log", "a"), 0, -1)
    assert log == [str(attempt) for attempt in range(5, 55)]


async def test_a_job_given_back_keeps_its_place_and_its_attempts(shard: Shard) -> None:
    await shard.add(row("a"), row("b"), row("c"))
    answer = await shard.turn(want=2)
    await shard.turn(*(settle(each, answer.token, "waiting", "") for each in answer.claims[::-1]), want=0)
    assert await shard.members("ready") == ["a", "b", "c"]
    assert (await shard.turn()).claims[0].attempts == 0


async def test_a_parked_job_is_listed_and_says_why_without_a_result(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.run("parked", text="no handler for it " + "x" * 100)
    assert await shard.members("parked") == ["a"]
    record = await shard.record("a")
    assert (record["state"], record["why"][:10]) == ("parked", "no handler")
    assert await shard.announce(unpark=True) == 1
    large = '"' + "r" * 100 + '"'
    await shard.run("completed", text=large)
    (outcome,) = await shard.store.look("em", ["a"], join=False)
    assert (outcome.state, outcome.text) == ("completed", large)


async def test_what_a_settle_leaves_waiting_wakes_the_pool_when_its_queue_is_empty(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token, "waiting", ""), want=0)
    assert await _wakes(shard) == [QUEUE]


async def test_a_job_put_back_while_the_last_waiting_one_is_claimed_is_not_forgotten(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.add(row("b"), row("d", delay=1000))
    await shard.command("DEL", shard.key("wake", "pool"))
    shard.now += 1000
    answer = await shard.turn(settle(answer.claims[0], answer.token, "delayed", "", attempts=1), want=1)
    assert _ids(answer) == ["b"]
    assert sorted(await shard.members("ready")) == ["a", "d"]
    assert QUEUE in [*answer.woken, *await _wakes(shard)]


@pytest.mark.parametrize("state", ["delayed", "waiting"])
async def test_what_a_settle_puts_back_can_be_claimed_in_the_same_call(shard: Shard, state: str) -> None:
    await shard.add(row("a"), row("b"), row("c", delay=5))
    answer = await shard.turn(want=1)
    shard.now += 5
    answer = await shard.turn(settle(answer.claims[0], answer.token, state, "", attempts=1), want=10)
    assert _ids(answer) == (["a", "b", "c"] if state == "waiting" else ["b", "a", "c"])
    assert [await shard.state(each) for each in "abc"] == ["active"] * 3
    assert await shard.members("ready") == []


# the fence


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "delayed", "waiting", "parked"])
async def test_a_settle_with_another_token_is_lost_and_writes_nothing(shard: Shard, state: str) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    before = await shard.record("a")
    late = await shard.turn(settle(answer.claims[0], "w:9", state, attempts=1), want=0)
    assert late.lost == ["a"]
    assert await shard.record("a") == before
    assert await shard.held() == ["a"]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "delayed", "waiting", "parked"])
async def test_a_settle_after_a_rescue_is_lost(shard: Shard, state: str) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    shard.now += LEASE
    assert (await shard.rescue())[1] == ["a"]
    late = await shard.turn(settle(answer.claims[0], answer.token, state, attempts=1), want=0)
    assert late.lost == ["a"]
    assert await shard.state("a") == "waiting"
    taken = await shard.turn(worker="other")
    late = await shard.turn(settle(answer.claims[0], answer.token, state, attempts=1), want=0)
    assert late.lost == ["a"]
    assert (await shard.record("a"))["token"] == taken.token


async def test_a_settle_of_a_job_without_a_record_is_lost(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.command("UNLINK", shard.key("job", "a"))
    assert (await shard.turn(settle(answer.claims[0], answer.token), want=0)).lost == ["a"]
    assert await shard.state("a") is None


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "delayed", "waiting", "parked"])
async def test_a_settle_sent_again_under_the_next_number_is_lost_and_writes_nothing(
    shard: Shard, state: str
) -> None:
    await shard.open_replies()
    await shard.add(row("a"))
    answer = await shard.turn()
    end = settle(answer.claims[0], answer.token, state, attempts=1, delay=500 if state == "delayed" else 0)
    await shard.turn(end, want=0)
    before, told = await shard.record("a"), await shard.replies()
    shard.now += 5
    assert (await shard.turn(end, want=0)).lost == ["a"]
    assert await shard.record("a") == before
    assert await shard.replies() == told


# repeats


async def test_a_repeated_call_gets_the_same_claims_and_no_others(shard: Shard) -> None:
    await shard.add(*(row(str(i), body="x" * 100) for i in range(6)))
    first = await shard.turn(want=3)
    again = await shard.turn(want=3, call=1)
    assert (again.claims, again.token) == (first.claims, first.token)
    assert await shard.held() == ["0", "1", "2"]
    assert await shard.members("ready") == ["3", "4", "5"]


async def test_a_repeated_call_settles_nothing_twice_and_repeats_what_was_lost(shard: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    ends = [settle(answer.claims[0], answer.token), settle(answer.claims[1], "foreign")]
    first = await shard.turn(*ends)
    again = await shard.turn(*ends, call=2)
    assert first.lost == again.lost == ["b"]
    assert await shard.replies() == [[("a", "completed", 1, "1")]]


async def test_a_repeated_call_repeats_the_wakes_that_it_took(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a"), queues=[add_queue("event.unasked")])
    await shard.command("ZADD", shard.key("wake", "pool"), 1, "event.unasked")
    first = await shard.turn()
    again = await shard.turn(call=1)
    assert first.woken == again.woken == ["event.unasked"]


async def test_a_repeated_call_leaves_out_what_was_taken_from_the_worker_meanwhile(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    await shard.turn()
    shard.now += LEASE
    await shard.rescue()
    await shard.turn(worker="other", want=1)
    assert _ids(await shard.turn(call=1)) == []


async def test_an_older_call_is_refused_and_changes_nothing(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn(want=0)
    await shard.turn(want=0)
    with pytest.raises(StoreRefused, match="older call") as caught:
        await shard.turn(call=1)
    assert caught.value.code == "STALE"
    assert await shard.members("ready") == ["a"]


async def test_the_last_calls_of_a_worker_go_ten_minutes_after_it(shard: Shard) -> None:
    for _ in range(2):
        await shard.turn()
        assert await shard.ttl("held", "w") == -1
    await shard.store.presence.deregister("w")
    assert 590_000 < await shard.ttl("held", "w") <= 600_000


# promotion


async def test_due_jobs_are_promoted_in_the_order_of_their_times_behind_what_waits(shard: Shard) -> None:
    await shard.add(
        row("later", delay=200), row("sooner", delay=100), row("waiting"), row("not yet", delay=201)
    )
    await shard.add(row("urgent", delay=200, priority=-1), row("lifo", delay=200, lifo=1))
    assert (await shard.turn(want=0)).next_due == START + 100
    shard.now += 200
    answer = await shard.turn(want=0)
    assert answer.next_due == START + 201
    assert await shard.members("ready") == ["urgent", "lifo", "waiting", "sooner", "later"]
    assert await shard.members("delayed") == ["not yet"]


async def test_a_promoted_job_wakes_the_pools_of_its_own_queue(shard: Shard) -> None:
    await shard.announce("elsewhere", "event.other")
    await shard.add(row("a", delay=100), queues=[add_queue("event.other")])
    await shard.command("DEL", shard.key("wake", "elsewhere"))
    shard.now += 100
    await shard.turn()
    assert await _wakes(shard, "elsewhere") == ["event.other"]


async def test_one_turn_promotes_at_most_a_hundred_jobs_and_says_that_more_are_due(shard: Shard) -> None:
    await shard.add(*(row(f"{i:03}", delay=1 + i) for i in range(150)))
    shard.now += 1000
    answer = await shard.turn(want=0)
    assert answer.next_due == START + 101
    assert len(await shard.members("ready")) == 100
    assert (await shard.turn(want=0)).next_due == -1


async def test_without_delayed_jobs_the_next_due_time_is_none(shard: Shard) -> None:
    assert (await shard.turn()).next_due == -1
