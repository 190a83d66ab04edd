"""rescue.lua, renew.lua, deregister.lua and note.lua: leases that expire, are renewed, and prove who may
write.
"""

from __future__ import annotations

import json

import pytest
from drivers.shards import LEASE, QUEUE, START, Shard, row, settle

from eventbus.errors import StoreRefused
from eventbus.store.scripting.script_rows import StallRow

# rescue


async def test_a_lease_that_ran_out_puts_the_job_back_in_its_old_place(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    await shard.turn()
    await shard.add(row("c"), row("urgent", priority=-1))
    shard.now += LEASE
    assert await shard.rescue() == (-1, ["a", "b"], [])
    assert await shard.members("ready") == ["urgent", "a", "b", "c"]
    assert await shard.held() == []


async def test_a_stall_is_counted_and_is_no_attempt(shard: Shard) -> None:
    await shard.add(row("a"))
    for stalls in (1, 2):
        await shard.turn()
        shard.now += LEASE
        await shard.rescue()
        assert (await shard.record("a"))["stalls"] == str(stalls)
    (claim,) = (await shard.turn()).claims
    assert (claim.stalls, claim.attempts) == (2, 0)


async def test_a_stall_is_kept_with_who_held_the_job_and_how_it_was(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn(worker="w7+")
    shard.now += 1000
    await shard.renew(("a", answer.token), worker="w7", lag=2500)
    shard.now += LEASE
    await shard.rescue()
    assert shard.stalls == [StallRow("a", "rescued", "w7", LEASE, 2500)]
    (kept,) = [json.loads(each) for each in await shard.command("LRANGE", shard.key("log", "a"), 0, -1)]
    assert (kept["type"], kept["worker"], kept["stalls"]) == ("StalledError", "w7", 1)
    assert f"renewed it {LEASE} ms before, its event loop 2500 ms behind" in kept["message"]


async def test_a_lease_that_has_not_ended_is_left_and_its_end_is_told(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn()
    shard.now += LEASE - 1
    assert await shard.rescue() == (1, [], [])
    assert await shard.held() == ["a"]


async def test_past_the_stall_limit_a_job_fails_and_its_emitter_is_told(shard: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a", key="k"))
    await shard.turn()
    shard.now += LEASE
    assert await shard.rescue(max_stalls=1) == (-1, ["a"], [])
    await shard.turn()
    shard.now += LEASE
    assert await shard.rescue(max_stalls=1) == (-1, [], ["a"])
    assert await shard.members("failed") == ["a"]
    assert (await shard.record("a"))["stalls"] == "2"
    ((told,),) = await shard.replies()
    assert told[:3] == ("a", "failed", 1)
    error = json.loads(told[3])
    assert (error["type"], error["stalls"], error["attempts"]) == ("StalledError", 2, 0)
    assert "2 times" in error["message"]
    assert await shard.add(row("b", key="k")) == []  # the key is free again


async def test_a_settle_after_the_job_failed_by_stalls_is_lost(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    shard.now += LEASE
    await shard.rescue(max_stalls=0)
    assert (await shard.turn(settle(answer.claims[0], answer.token), want=0)).lost == ["a"]
    assert await shard.state("a") == "failed"


async def test_a_rescue_takes_a_bounded_number_and_says_that_more_is_due(shard: Shard) -> None:
    await shard.add(*(row(str(i)) for i in range(5)))
    await shard.turn()
    shard.now += LEASE
    assert await shard.rescue(limit=3) == (0, ["2", "3", "4"], [])
    assert await shard.rescue(limit=3) == (-1, ["0", "1"], [])
    assert await shard.members("ready") == ["0", "1", "2", "3", "4"], "in the order of their claims"


async def test_a_rescued_job_wakes_the_pools_of_its_queue(shard: Shard) -> None:
    await shard.announce()
    await shard.add(row("a"))
    await shard.turn()
    shard.now += LEASE
    await shard.rescue()
    assert await shard.members("wake", "pool") == [QUEUE]


async def test_after_a_gap_of_more_than_half_a_lease_everybody_has_one_more_lease(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.renew(worker="other")  # heard
    await shard.turn()
    shard.now += 2 * LEASE  # the server stood still, or was away
    assert await shard.rescue(is_heard=False) == (LEASE, [], [])
    assert await shard.state("a") == "active"
    for _ in range(4):  # no worker renews it, but workers are there
        shard.now += LEASE // 4
        await shard.renew(worker="other")
    assert await shard.rescue(is_heard=False) == (-1, ["a"], [])


async def test_beats_that_are_a_little_late_give_no_grace(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn()
    for _ in range(4):  # other workers', each later than it should be
        shard.now += LEASE // 2
        await shard.renew(worker="other")
    assert await shard.rescue(is_heard=False) == (-1, ["a"], [])


async def test_a_renewal_after_a_gap_gives_the_grace_too(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.renew()
    await shard.turn()
    shard.now += 2 * LEASE
    await shard.renew()
    assert await shard.rescue(is_heard=False) == (LEASE, [], [])


async def test_while_workers_are_heard_there_is_no_grace(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.renew()
    await shard.turn()
    for _ in range(4):
        shard.now += LEASE // 4
        await shard.renew(worker="other")
    assert (await shard.rescue(is_heard=False))[1] == ["a"]


# renew


async def test_a_renewal_puts_the_end_of_all_leases_of_its_worker_off(shard: Shard) -> None:
    await shard.add(row("a"), row("b"), row("c"))
    answer = await shard.turn(want=2)
    await shard.turn(worker="other")
    shard.now += 3000
    assert await shard.renew(("a", answer.token)) == []
    assert await shard.lease_end() == START + 3000 + LEASE
    assert await shard.lease_end("other") == START + LEASE
    shard.now = START + LEASE
    assert await shard.rescue() == (3000, ["c"], [])
    assert await shard.held() == ["a", "b"]


async def test_a_claim_begins_a_whole_lease(shard: Shard) -> None:
    await shard.turn()
    shard.now += LEASE + 1
    await shard.add(row("a"))
    await shard.turn()
    assert await shard.rescue() == (LEASE, [], [])
    assert await shard.held() == ["a"]


async def test_a_turn_is_answered_where_somebody_elses_value_stands_for_the_wakes(
    shard: Shard, planted: set[str]
) -> None:
    planted.add(shard.key("wake", "pool"))
    await shard.add(row("a"), row("b"))
    await shard.command("SET", shard.key("wake", "pool"), "foreign")
    answer = await shard.turn(want=1)
    assert ([each.id for each in answer.claims], answer.more) == (["a"], [1])


async def test_a_renewal_of_a_worker_that_took_no_turn_makes_it_none_of_those_with_leases(
    shard: Shard,
) -> None:
    await shard.renew()
    assert await shard.lease_end() is None
    assert await shard.rescue() == (-1, [], [])


async def test_a_worker_that_was_rescued_and_lives_is_registered_again_by_its_next_turn(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn()
    shard.now += LEASE
    await shard.rescue()
    assert await shard.lease_end() is None
    await shard.renew()
    assert await shard.lease_end() is None
    assert [each.id for each in (await shard.turn()).claims] == ["a"]
    assert await shard.lease_end() == shard.now + LEASE


async def test_a_rescue_that_was_cut_short_leaves_the_rest_to_a_worker_that_lives(shard: Shard) -> None:
    await shard.add(*(row(each) for each in "abc"))
    answer = await shard.turn()
    shard.now += LEASE
    assert await shard.rescue(limit=1) == (0, ["c"], [])
    assert await shard.renew(*((each, answer.token) for each in "abc")) == ["c"]
    assert await shard.rescue() == (LEASE, [], [])
    ends = [settle(each, answer.token) for each in answer.claims]
    assert (await shard.turn(*ends, want=0)).lost == ["c"]
    assert [await shard.state(each) for each in "abc"] == ["completed", "completed", "waiting"]


async def test_one_rescue_sees_to_several_dead_workers(shard: Shard) -> None:
    for worker in ("u", "v", "w"):
        await shard.add(row(f"of-{worker}"))
        await shard.turn(worker=worker)
        shard.now += 1
    shard.now += LEASE
    assert await shard.rescue(limit=2) == (0, ["of-u", "of-v"], [])
    assert await shard.rescue(limit=2) == (-1, ["of-w"], [])


# what a worker holds and does not know of


async def test_what_a_worker_holds_and_does_not_name_is_given_back_and_the_stall_is_kept(
    shard: Shard,
) -> None:
    """`settle-forgotten`, `turn-given-up`: nobody runs it."""
    await shard.announce()
    await shard.add(*(row(each) for each in "abc"))
    known = await shard.turn(want=1)
    await shard.turn()
    await shard.add(row("d"))
    await shard.command("DEL", shard.key("wake", "pool"))
    assert await shard.renew(("a", known.token), calls=(2, 0)) == []
    assert shard.returned == ["b", "c"]
    assert await shard.held() == ["a"]
    assert await shard.members("ready") == ["b", "c", "d"]
    claims = (await shard.turn(worker="other")).claims
    assert [(each.id, each.stalls, each.attempts) for each in claims] == [
        ("b", 1, 0),
        ("c", 1, 0),
        ("d", 0, 0),
    ]
    (kept,) = [json.loads(each) for each in await shard.command("LRANGE", shard.key("log", "b"), 0, -1)]
    assert (kept["type"], kept["worker"], kept["stalls"]) == ("StalledError", "w", 1)
    assert "worker w held it and did not know of it" in kept["message"]


async def test_what_a_call_claims_whose_answer_is_on_its_way_is_left_with_the_worker(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    await shard.turn(want=1)
    await shard.turn(worker="w+", want=1)
    assert await shard.renew(calls=(0, 0)) == []
    assert (shard.returned, await shard.held()) == ([], ["a", "b"])
    await shard.renew(calls=(1, 0))
    assert (shard.returned, await shard.held()) == (["a"], ["b"])
    await shard.renew(calls=(1, 1))
    assert (shard.returned, await shard.held()) == (["b"], [])


async def test_a_claim_that_was_given_back_is_not_in_the_answer_of_its_repeated_call(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn()
    await shard.renew(calls=(1, 0))
    assert (await shard.turn(call=1)).claims == []
    assert await shard.members("ready") == ["a"]


async def test_what_was_cancelled_meanwhile_and_is_not_known_ends_as_cancelled(shard: Shard) -> None:
    await shard.open_replies()
    await shard.add(row("a"))
    await shard.turn()
    assert await shard.cancel("a") == ["asked"]
    await shard.renew(calls=(1, 0))
    assert shard.returned == ["a"]
    assert await shard.state("a") == "cancelled"
    assert [each[:2] for each in (await shard.replies())[0]] == [("a", "cancelled")]


async def test_a_renewal_gives_back_a_bounded_number(shard: Shard) -> None:
    await shard.add(*(row(f"j{n:03}") for n in range(250)))
    await shard.turn()
    await shard.renew(calls=(1, 0))
    assert len(shard.returned) == 200
    await shard.renew(calls=(1, 0))
    assert len(shard.returned) == 50
    assert await shard.members("ready") == [f"j{n:03}" for n in range(250)]


# the end of a worker


async def test_a_worker_that_has_stopped_is_not_registered_and_a_late_copy_of_its_call_claims_nothing(
    shard: Shard,
) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    assert await shard.store.presence.deregister("w") == 1
    assert await shard.lease_end() == START + LEASE  # it holds a job: whoever rescues will see to it
    await shard.turn(settle(answer.claims[0], answer.token), want=0)
    assert await shard.store.presence.deregister("w") == 0
    assert await shard.lease_end() is None
    assert 0 < await shard.ttl("held", "w") <= 600_000
    await shard.add(row("b"))
    assert (await shard.turn(call=2)).claims == []
    with pytest.raises(StoreRefused, match="STALE"):
        await shard.turn(call=1)
    assert await shard.members("ready") == ["b"]


async def test_a_renewal_tells_which_leases_are_lost_and_does_not_bring_them_back(shard: Shard) -> None:
    await shard.add(row("ended"), row("rescued"), row("retaken"), row("gone"))
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token), want=0)
    shard.now += LEASE
    await shard.rescue()
    taken = await shard.turn(worker="other", want=1)
    assert [each.id for each in taken.claims] == ["rescued"]
    await shard.command("UNLINK", *(shard.key(kind, "gone") for kind in ("job", "more", "log")))
    jobs = ["ended", "rescued", "retaken", "gone", "never"]
    assert await shard.renew(*((each, answer.token) for each in jobs)) == jobs
    assert (await shard.held(), await shard.held("other")) == ([], ["rescued"])


# note


async def test_progress_is_recorded_under_the_lease(shard: Shard) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    assert await shard.note("a", answer.token, "40") == []
    assert await shard.command("GET", shard.key("progress", "a")) == "40"


async def test_progress_without_the_lease_is_refused_and_not_recorded(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[1], answer.token), want=0)
    for job, token in (("a", "w:9"), ("b", answer.token), ("none", answer.token)):
        assert await shard.note(job, token, "1") == [job]
        assert await shard.command("EXISTS", shard.key("progress", job)) == 0
