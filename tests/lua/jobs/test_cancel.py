"""cancel.lua, and its effect on settle, rescue and add: the first call decides how a job ends."""

from __future__ import annotations

import json

import pytest
from drivers.shards import CANCELLED, LEASE, QUEUE, Shard, add_queue, row, settle

from eventbus.store.scripting.script_rows import SUPERSEDE


async def test_a_waiting_job_ends_at_once_and_its_emitter_is_told(shard: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a"), row("b"))
    assert await shard.cancel("a") == ["ended"]
    assert await shard.members("ready") == ["b"]
    assert await shard.members("cancelled") == ["a"]
    assert await shard.replies() == [[("a", "cancelled", 1, CANCELLED)]]
    assert [claim.id for claim in (await shard.turn()).claims] == ["b"]


async def test_a_delayed_a_retrying_and_a_parked_job_end_at_once(shard: Shard) -> None:
    await shard.add(row("parked"), row("retrying"), row("delayed", delay=60_000))
    answer = await shard.turn()
    ends = {"parked": ("parked", 0), "retrying": ("delayed", 5_000)}
    await shard.turn(
        *(settle(each, answer.token, ends[each.id][0], delay=ends[each.id][1]) for each in answer.claims),
        want=0,
    )
    assert await shard.cancel("delayed", "retrying", "parked") == ["ended"] * 3
    assert await shard.members("delayed") == []
    assert await shard.members("parked") == []
    assert sorted(await shard.members("cancelled")) == ["delayed", "parked", "retrying"]


async def test_a_running_job_stays_active_and_its_worker_is_told(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn(worker="w7+")
    assert await shard.cancel("a") == ["asked"]
    assert await shard.state("a") == "active"
    assert await shard.members("control", "w7") == ["cancel:a"]
    assert 0 < await shard.ttl("control", "w7") <= 120_000
    assert await shard.renew(("a", answer.token), worker="w7") == []
    assert shard.cancelled == ["a"]  # for a worker that did not get the message


@pytest.mark.parametrize("state", ["completed", "failed", "delayed", "waiting", "parked", "cancelled"])
async def test_whatever_a_settle_says_a_job_that_was_cancelled_before_ends_cancelled(
    shard: Shard, state: str
) -> None:
    await shard.open_replies()
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.cancel("a")
    assert (await shard.turn(settle(answer.claims[0], answer.token, state, delay=5), want=0)).lost == []
    assert await shard.members("cancelled") == ["a"]
    assert await shard.held() == []
    assert await shard.members("delayed") == []
    assert await shard.replies() == [[("a", "cancelled", 1, CANCELLED)]]


async def test_a_job_that_ended_before_is_over_and_keeps_its_outcome(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.run("completed", text="7")
    before = await shard.record("a")
    assert await shard.cancel("a") == ["over"]
    assert await shard.record("a") == before


async def test_a_repeat_changes_nothing_and_the_first_reason_stays(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    assert await shard.cancel("a") == ["asked"]
    assert await shard.cancel("a", text='{"type":"JobCancelled","message":"later"}') == ["asked"]
    await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert await shard.cancel("a") == ["over"]
    (outcome,) = await shard.store.look("em", ["a"], join=False)
    assert (outcome.state, outcome.text) == ("cancelled", CANCELLED)


@pytest.mark.parametrize("is_running", [False, True])
async def test_the_same_request_sent_again_is_answered_as_before(shard: Shard, is_running: bool) -> None:
    await shard.add(row("a"))
    answer = await shard.turn(want=int(is_running))
    first = await shard.cancel("a", call="c1")
    assert await shard.cancel("a", call="c1") == first
    if is_running:
        await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert await shard.cancel("a", call="c1") == ["ended"]
    assert await shard.cancel("a", call="c2") == ["over"]


async def test_rescue_ends_what_was_cancelled_while_a_dead_worker_held_it(shard: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.cancel("a")
    shard.now += LEASE
    await shard.rescue()
    assert [(each.id, each.verdict) for each in shard.stalls] == [("a", "cancelled")]
    assert await shard.state("a") == "cancelled"
    assert await shard.replies() == [[("a", "cancelled", 1, CANCELLED)]]
    assert (await shard.turn(settle(answer.claims[0], answer.token), want=0)).lost == ["a"]


async def test_a_job_is_cancelled_with_those_of_its_groups_or_a_groups_alone(shard: Shard) -> None:
    await shard.announce(group="g")
    await shard.announce(group="h")
    await shard.add(row("a"))
    assert await shard.cancel("a@g") == ["ended"]
    assert [await shard.state(each) for each in ("a", "a@g", "a@h")] == ["waiting", "cancelled", "waiting"]
    assert await shard.cancel("a") == ["ended"]
    assert [await shard.state(each) for each in ("a", "a@g", "a@h")] == ["cancelled"] * 3
    assert await shard.cancel("a") == ["over"]


async def test_a_job_of_groups_only_is_found_by_its_queue(shard: Shard) -> None:
    await shard.announce(group="g")
    await shard.add(row("a"), queues=(add_queue(has_default=0),))
    assert await shard.cancel("a") == ["unknown"]
    assert await shard.cancel("a", queue=QUEUE) == ["ended"]


async def test_a_job_without_a_record_is_unknown(shard: Shard, planted: set[str]) -> None:
    planted.add(shard.key("job", "text"))
    await shard.command("SET", shard.key("job", "text"), "foreign")
    assert await shard.cancel("none", "text") == ["unknown", "unknown"]


async def test_the_key_of_a_cancelled_job_is_free_again(shard: Shard) -> None:
    await shard.add(row("a", key="k"))
    await shard.cancel("a")
    assert await shard.add(row("b", key="k")) == []
    assert await shard.members("ready") == ["b"]


# superseding


async def test_an_open_job_of_the_key_is_cancelled_and_the_new_one_takes_its_place(shard: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a", key="k"))
    assert await shard.add(row("b", key="k", meeting=SUPERSEDE)) == []
    assert await shard.members("ready") == ["b"]
    (((job, state, _, text),),) = await shard.replies()
    assert (job, state) == ("a", "cancelled")
    assert json.loads(text)["message"] == "superseded by job b, which has the same key"
    assert (await shard.add(row("c", key="k")))[0].job == "b"  # the key is the new job's


async def test_what_supersedes_a_waiting_job_needs_no_room_in_a_full_queue(shard: Shard) -> None:
    queues = [add_queue(max_waiting=1)]
    await shard.add(row("a", key="k"), queues=queues)
    assert await shard.add(row("b", key="k", meeting=SUPERSEDE), queues=queues) == []
    assert await shard.members("ready") == ["b"]
    assert (await shard.add(row("c"), queues=queues))[0].word == "full"


async def test_a_running_job_of_the_key_is_marked_and_the_new_one_waits(shard: Shard) -> None:
    await shard.add(row("a", key="k"))
    answer = await shard.turn()
    await shard.add(row("b", key="k", meeting=SUPERSEDE))
    assert await shard.members("control", "w") == ["cancel:a"]
    assert [claim.id for claim in (await shard.turn()).claims] == ["b"]
    await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert await shard.state("a") == "cancelled"
    assert (await shard.add(row("c", key="k")))[0].job == "b"


async def test_a_completed_job_of_the_key_is_left_and_the_new_one_runs_all_the_same(shard: Shard) -> None:
    await shard.add(row("a", key="k"))
    await shard.run("completed")
    assert await shard.add(row("b", key="k", meeting=SUPERSEDE)) == []
    assert [await shard.state(each) for each in ("a", "b")] == ["completed", "waiting"]


async def test_the_last_of_one_call_wins_and_a_repeat_of_the_call_changes_nothing(shard: Shard) -> None:
    rows = [row(job, key="k", meeting=SUPERSEDE) for job in "abc"]
    for _ in range(2):
        assert await shard.add(*rows) == []
        assert [await shard.state(each) for each in "abc"] == ["cancelled", "cancelled", "waiting"]
    assert await shard.members("ready") == ["c"]


async def test_a_job_in_another_state_than_was_named_stays_as_it_is(shard: Shard) -> None:
    await shard.add(row("runs"), row("delayed", delay=60_000), row("ended"), row("waits"))
    await shard.cancel("ended")
    answer = await shard.turn(want=1)
    assert [claim.id for claim in answer.claims] == ["runs"]
    named = ("runs", "delayed", "ended", "waits", "nobody")
    words = ["other", "other", "over", "ended", "unknown"]
    assert await shard.cancel(*named, of="waiting", call="c") == words
    assert await shard.cancel(*named, of="waiting", call="c") == words, "the same when it is sent again"
    assert await shard.state("runs") == "active"
    assert await shard.members("delayed") == ["delayed"]
    assert await shard.cancel("runs", of="active") == ["asked"]
