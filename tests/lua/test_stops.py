"""Trees that stop early: every row of the design's table, for each cause and each state of the root."""

from __future__ import annotations

import json
from typing import Any

import pytest
from groves import ROOTS, STEPS, TIMEOUT, Grove, make_tree
from shards import LEASE, settle

from eventbus.store.rows import SettleRow

_CAUSES = ["failed", "cancelled", "timeout"]


async def _plant(grove: Grove, needs: dict[str, str], **given: Any) -> None:
    await grove.add(make_tree({"bad": "", **needs}, timeout=TIMEOUT, **given))


@pytest.mark.parametrize("cause", _CAUSES)
async def test_what_nobody_runs_ends_as_cancelled_and_never_runs(grove: Grove, cause: str) -> None:
    needs = dict.fromkeys(["good", "slow", "retried", "parked", "back", "idle", "late"], "")
    await _plant(grove, {**needs, "next": "slow", "over": "next"}, delays={"late": 7200.0})
    assert len(await grove.claim(want=6)) == 6
    await grove.end("completed", "f/good")
    await grove.end("delayed", "f/retried", attempts=1, delay=7_200_000)
    await grove.end("parked", "f/parked")
    await grove.end("waiting", "f/back")
    await grove.stop(cause)
    dropped = dict.fromkeys(["retried", "parked", "back", "idle", "late", "next", "over"], "cancelled")
    bad = "failed" if cause == "failed" else "active"
    states = await grove.states()
    assert states == {"f": "waiting-children", "bad": bad, "good": "completed", "slow": "active", **dropped}
    for kind, name in (("ready", STEPS), ("delayed", ""), ("parked", STEPS)):
        assert await grove.shard.members(kind, name) == []
    assert await grove.claim() == []
    await grove.shard.announce(queue=STEPS, unpark=True)
    grove.shard.now += 7_200_000
    assert await grove.claim() == []
    assert {await grove.outcome(f"f/{each}") for each in dropped} == {
        ("cancelled", '{"type":"JobCancelled","message":"its tree stopped"}')
    }


@pytest.mark.parametrize("cause", _CAUSES)
@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "delayed", "waiting", "parked"])
async def test_an_active_member_finishes_this_attempt_and_has_no_further_one(
    grove: Grove, cause: str, state: str
) -> None:
    await _plant(grove, {"slow": "", "next": "slow"})
    await grove.claim()
    await grove.stop(cause)
    await grove.end_bad(cause)
    assert await grove.claim() == []
    answer = await grove.end(state, "f/slow", text='{"message":"slow"}', attempts=1, delay=5)
    assert answer.lost == []
    ends = {"delayed": "failed", "waiting": "failed", "parked": "cancelled"}
    bad = "failed" if cause == "failed" else "cancelled"
    expected = {"f": "waiting", "bad": bad, "slow": ends.get(state, state), "next": "cancelled"}
    assert await grove.states() == expected
    assert await grove.done() == (["slow"] if state == "completed" else [])
    if state == "waiting":
        assert json.loads((await grove.outcome("f/slow"))[1])["type"] == "StalledError"
    await grove.undo(cause=cause)
    assert (await grove.outcome("f"))[0] == ("failed" if cause == "failed" else "cancelled")
    assert await grove.claim() == []


@pytest.mark.parametrize("cause", _CAUSES)
async def test_handlers_hear_of_a_cancel_and_a_timeout_but_not_of_a_failure(grove: Grove, cause: str) -> None:
    await _plant(grove, {"slow": ""})
    await grove.claim()
    token = grove.held["f/slow"][1]
    await grove.stop(cause)
    heard = [] if cause == "failed" else ["cancel:f/bad", "cancel:f/slow"]
    assert await grove.shard.members("control", "w") == heard
    await grove.shard.renew(("f/slow", token))
    assert grove.shard.cancelled == ([] if cause == "failed" else ["f/slow"])


@pytest.mark.parametrize("cause", _CAUSES)
@pytest.mark.parametrize("is_swept", [True, False])
async def test_a_lease_that_is_lost_is_not_run_again(grove: Grove, cause: str, is_swept: bool) -> None:
    await _plant(grove, {"slow": "", "next": "slow"})
    await grove.claim()
    token = grove.held["f/slow"][1]
    if is_swept:
        await grove.stop(cause)
        await grove.end_bad(cause)
        assert await grove.lose() == ["f/slow failed"]
        state, text = await grove.outcome("f/slow")
        assert (state, json.loads(text)["type"]) == ("failed", "StalledError")
    else:  # the rescue comes first: it waits, and the stop takes it
        await grove.shard.renew(("f/bad", grove.held["f/bad"][1]))
        grove.shard.now += LEASE // 2
        await grove.shard.renew(("f/bad", grove.held["f/bad"][1]))
        grove.shard.now += LEASE // 2
        await grove.shard.rescue()
        await grove.stop(cause)
        await grove.end_bad(cause)
        assert await grove.shard.state("f/slow") == "cancelled"
    late = await grove.turn(SettleRow("f/slow", token, "completed", "", "1", 0), want=0)
    assert late.lost == ["f/slow"]
    assert await grove.done() == []
    await grove.undo(cause=cause)


# the root at the mark


@pytest.mark.parametrize("cause", ["cancelled", "timeout"])
async def test_a_root_that_waits_to_run_undoes_instead(grove: Grove, cause: str) -> None:
    await _plant(grove, {})
    await grove.run()
    assert (await grove.states())["f"] == "waiting"
    await grove.stop(cause)
    await grove.undo(cause=cause)


@pytest.mark.parametrize("cause", ["cancelled", "timeout"])
@pytest.mark.parametrize("state", ["delayed", "parked", "waiting"])
async def test_a_root_that_is_put_off_undoes_at_once(grove: Grove, cause: str, state: str) -> None:
    await _plant(grove, {})
    await grove.run()
    await grove.claim()
    await grove.end(state, "f", attempts=1, delay=7_200_000)
    await grove.stop(cause)
    assert [await grove.shard.members(*each) for each in (("delayed", ""), ("parked", ROOTS))] == [[], []]
    await grove.undo(cause=cause)


@pytest.mark.parametrize("cause", ["cancelled", "timeout"])
@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "delayed", "waiting", "parked"])
async def test_a_root_that_runs_at_the_mark_runs_again_to_undo(grove: Grove, cause: str, state: str) -> None:
    await _plant(grove, {})
    await grove.run()
    assert await grove.claim() == ["f"]
    token = grove.held["f"][1]
    await grove.stop(cause)
    assert await grove.shard.members("control", "w") == ["cancel:f"]
    await grove.shard.renew(("f", token))
    assert grove.shard.cancelled == ["f"]
    await grove.end(state, "f", attempts=1, delay=7_200_000)
    assert (await grove.states())["f"] == "waiting"
    await grove.undo(cause=cause)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_a_root_that_fails_for_good_undoes_its_tree(grove: Grove, state: str) -> None:
    await _plant(grove, {})
    await grove.run()
    await grove.claim()
    await grove.end(state, "f", text='{"message":"hook"}')
    page = await grove.look()
    assert (page.root["stop"], page.root["stopper"], page.root["text"]) == (
        "failed",
        "f",
        '{"message":"hook"}',
    )
    await grove.undo()


async def test_a_root_that_stalls_too_often_undoes_its_tree(grove: Grove) -> None:
    await _plant(grove, {})
    await grove.run()
    for _ in range(3):
        await grove.claim()
        assert await grove.lose(max_stalls=3) == ["f rescued"]
    await grove.claim()
    assert await grove.lose(max_stalls=3) == ["f rescued"]
    assert (await grove.look()).root["stop"] == "failed"
    await grove.undo()


@pytest.mark.parametrize("cause", _CAUSES)
async def test_a_root_that_undoes_may_be_parked_put_off_and_given_back(grove: Grove, cause: str) -> None:
    await _plant(grove, {})
    await grove.claim()
    await grove.stop(cause)
    await grove.end_bad(cause)
    assert await grove.claim() == ["f"]
    await grove.end("parked", "f")  # it is not known here: nobody runs it until somebody knows
    assert await grove.claim() == []
    await grove.shard.announce(queue=ROOTS, unpark=True)
    assert await grove.claim() == ["f"]
    await grove.end("delayed", "f", delay=1000, attempts=1)
    assert await grove.claim() == []
    grove.shard.now += 1000
    assert await grove.claim() == ["f"]
    await grove.end("waiting", "f")
    assert await grove.claim() == ["f"]
    for _ in range(3):
        assert await grove.lose(max_stalls=5) == ["f rescued"]
        assert await grove.claim() == ["f"]
    await grove.end("waiting", "f")
    await grove.undo(cause=cause)


async def test_while_it_is_undone_nothing_stops_it_again(grove: Grove) -> None:
    await _plant(grove, {"a": ""})
    await grove.claim()
    await grove.end("completed", "f/a")
    await grove.stop("failed")
    await grove.claim()
    assert await grove.checkpoint("f", acknowledges=True) == "ok"
    assert await grove.cancel() == "over"
    grove.shard.now += round(TIMEOUT * 1000)
    await grove.turn(want=0)
    assert (await grove.look()).root["stop"] == "failed"
    assert await grove.shard.members("control", "w") == []
    await grove.end("delayed", "f", delay=0, attempts=1)
    assert await grove.claim() == ["f"]
    await grove.end("failed", "f", text='{"message":"undone"}')
    assert await grove.outcome("f") == ("failed", '{"message":"undone"}')


async def test_the_first_cause_stays(grove: Grove) -> None:
    await _plant(grove, {"slow": ""})
    await grove.claim()
    await grove.stop("cancelled")
    await grove.end("failed", "f/bad", text="{}")
    grove.shard.now += round(TIMEOUT * 1000)
    await grove.turn(want=0)
    assert (await grove.look()).root["stop"] == "cancelled"
    await grove.end("failed", "f/slow", text="{}")
    await grove.undo(cause="cancelled")


# claims look at the mark


_MANY = [f"m{i}" for i in range(350)]


@pytest.mark.parametrize("cause", _CAUSES)
async def test_a_claim_takes_nothing_that_the_sweep_has_not_reached(grove: Grove, cause: str) -> None:
    await _plant(grove, dict.fromkeys(_MANY, ""))
    await grove.claim(want=1)
    await grove.stop(cause)
    await grove.end_bad(cause)
    calls = 0
    while "f" not in grove.held:
        states = [await grove.shard.state(f"f/{each}") for each in _MANY]
        assert set(states) <= {"waiting", "cancelled"}
        assert states.count("cancelled") in range(99, len(_MANY) + 1)
        claims = await grove.claim(want=5)
        assert claims == [] or (claims == ["f"] and "waiting" not in states[:300])
        calls += 1
    assert calls <= 5
    assert {await grove.shard.state(f"f/{each}") for each in _MANY} == {"cancelled"}
    assert await grove.checkpoint("f", acknowledges=True) == "ok"
    await grove.end("failed", "f", text="{}")
    assert await grove.shard.members("deadlines", "") == []


async def test_a_member_that_the_sweep_has_not_reached_and_that_runs_is_waited_for(grove: Grove) -> None:
    await _plant(grove, dict.fromkeys(_MANY, ""))
    await grove.claim(want=340)
    slow = "f/m338"
    await grove.stop("failed")
    await grove.end("completed", *[each for each in grove.held if each != slow])
    for _ in range(6):
        assert await grove.claim() == []
    assert [await grove.shard.state(each) for each in (slow, "f/m349")] == ["active", "cancelled"]
    assert await grove.shard.state("f") == "waiting-children"
    await grove.end("completed", slow)
    assert (await grove.look(listed="done", first=338)).members[0].id == slow
    await grove.undo()


# members one by one


@pytest.mark.parametrize("is_active", [True, False])
async def test_a_member_that_is_cancelled_alone_stops_its_tree(grove: Grove, is_active: bool) -> None:
    await grove.add(make_tree({"a": "", "b": "a"}))
    if is_active:
        await grove.claim()
    assert await grove.cancel("f/a") == ("asked" if is_active else "ended")
    if is_active:
        await grove.end("cancelled", "f/a", text="{}")
    page = await grove.look()
    assert (page.root["stop"], page.root["stopper"]) == ("failed", "f/a")
    await grove.undo()


@pytest.mark.parametrize("first", ["waiting", "delayed"])
async def test_what_is_put_back_in_the_call_that_stops_the_tree_ends_with_it(
    grove: Grove, first: str
) -> None:
    await _plant(grove, {"a": "", "b": ""})
    await grove.claim()
    rows = [
        settle(*grove.held["f/a"], first, "", attempts=1),
        settle(*grove.held["f/bad"], "failed", "{}"),
        settle(*grove.held["f/b"], first, "", attempts=1),
    ]
    answer = await grove.turn(*rows)
    assert answer.claims == [] or [each.id for each in answer.claims] == ["f"]
    assert await grove.states() | {"f": ""} == {"f": "", "bad": "failed", "a": "cancelled", "b": "cancelled"}
    assert await grove.shard.members("ready", STEPS) == []
    assert await grove.shard.members("failed", STEPS) == []


async def test_what_one_settle_frees_and_the_next_stops_never_runs(grove: Grove) -> None:
    await _plant(grove, {"a": "", "b": "a"})
    await grove.claim()
    answer = await grove.turn(
        settle(*grove.held["f/a"]), settle(*grove.held["f/bad"], "failed", "{}"), want=10
    )
    assert [each.id for each in answer.claims] == ["f"]
    assert await grove.states() == {"f": "active", "bad": "failed", "a": "completed", "b": "cancelled"}
