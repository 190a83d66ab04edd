"""Trees that stop early, for each cause and each state of the root."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drivers.shards import LEASE, settle
from drivers.tree_driver import ROOTS, STEPS, TIMEOUT, TreeDriver, make_tree

from eventbus.store.scripting.script_rows import SettleRow

_CAUSES = ["failed", "cancelled", "timeout"]


async def _plant(driver: TreeDriver, needs: dict[str, str], **given: Any) -> None:
    await driver.add(make_tree({"bad": "", **needs}, timeout=TIMEOUT, **given))


@pytest.mark.parametrize("cause", _CAUSES)
async def test_what_nobody_runs_ends_as_cancelled_and_never_runs(driver: TreeDriver, cause: str) -> None:
    needs = dict.fromkeys(["good", "slow", "retried", "parked", "back", "idle", "late"], "")
    await _plant(driver, {**needs, "next": "slow", "over": "next"}, delays={"late": 7200.0})
    assert len(await driver.claim(want=6)) == 6
    await driver.end("completed", "f/good")
    await driver.end("delayed", "f/retried", attempts=1, delay=7_200_000)
    await driver.end("parked", "f/parked")
    await driver.end("waiting", "f/back")
    await driver.stop(cause)
    dropped = dict.fromkeys(["retried", "parked", "back", "idle", "late", "next", "over"], "cancelled")
    bad = "failed" if cause == "failed" else "active"
    states = await driver.states()
    assert states == {"f": "waiting-children", "bad": bad, "good": "completed", "slow": "active", **dropped}
    for kind, name in (("ready", STEPS), ("delayed", STEPS), ("parked", STEPS)):
        assert await driver.shard.members(kind, name) == []
    assert await driver.claim() == []
    await driver.shard.announce(queue=STEPS, unpark=True)
    driver.shard.now += 7_200_000
    assert await driver.claim() == []
    assert {await driver.outcome(f"f/{each}") for each in dropped} == {
        ("cancelled", '{"type":"JobCancelled","message":"its tree stopped"}')
    }


@pytest.mark.parametrize("cause", _CAUSES)
@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "delayed", "waiting", "parked"])
async def test_an_active_member_finishes_this_attempt_and_has_no_further_one(
    driver: TreeDriver, cause: str, state: str
) -> None:
    await _plant(driver, {"slow": "", "next": "slow"})
    await driver.claim()
    await driver.stop(cause)
    await driver.end_bad(cause)
    assert await driver.claim() == []
    answer = await driver.end(state, "f/slow", text='{"message":"slow"}', attempts=1, delay=5)
    assert answer.lost == []
    ends = {"delayed": "failed", "waiting": "failed", "parked": "cancelled"}
    bad = "failed" if cause == "failed" else "cancelled"
    expected = {"f": "waiting", "bad": bad, "slow": ends.get(state, state), "next": "cancelled"}
    assert await driver.states() == expected
    assert await driver.done() == (["slow"] if state == "completed" else [])
    if state == "waiting":
        assert json.loads((await driver.outcome("f/slow"))[1])["type"] == "StalledError"
    await driver.undo(cause=cause)
    assert (await driver.outcome("f"))[0] == ("failed" if cause == "failed" else "cancelled")
    assert await driver.claim() == []


async def test_an_active_member_that_is_put_off_is_cancelled_for_it_did_not_fail(driver: TreeDriver) -> None:
    await _plant(driver, {"slow": ""})
    await driver.claim()
    await driver.stop("cancelled")
    await driver.end_bad("cancelled")
    await driver.end("delayed", "f/slow", text="", attempts=0, delay=5)
    assert (await driver.outcome("f/slow"))[0] == "cancelled"


@pytest.mark.parametrize("cause", _CAUSES)
async def test_handlers_hear_of_a_cancel_and_a_timeout_but_not_of_a_failure(
    driver: TreeDriver, cause: str
) -> None:
    await _plant(driver, {"slow": ""})
    await driver.claim()
    token = driver.held["f/slow"][1]
    await driver.stop(cause)
    heard = [] if cause == "failed" else ["cancel:f/bad", "cancel:f/slow"]
    assert await driver.shard.members("control", "w") == heard
    await driver.shard.renew(("f/slow", token))
    assert driver.shard.cancelled == ([] if cause == "failed" else ["f/slow"])


@pytest.mark.parametrize("cause", _CAUSES)
@pytest.mark.parametrize("is_swept", [True, False])
async def test_a_lease_that_is_lost_is_not_run_again(driver: TreeDriver, cause: str, is_swept: bool) -> None:
    await _plant(driver, {"slow": "", "next": "slow"})
    await driver.claim(1)
    await driver.claim(worker="other")
    assert {job: token for job, (_, token) in driver.held.items()} == {"f/slow": "other:1", "f/bad": "w:1"}
    token = driver.held["f/slow"][1]
    if is_swept:
        await driver.stop(cause)
        await driver.end_bad(cause)
        assert await driver.lose() == ["f/slow failed"]
        state, text = await driver.outcome("f/slow")
        assert (state, json.loads(text)["type"]) == ("failed", "StalledError")
    else:  # the rescue comes first: it waits, and the stop takes it
        await driver.shard.renew(("f/bad", driver.held["f/bad"][1]))
        driver.shard.now += LEASE // 2
        await driver.shard.renew(("f/bad", driver.held["f/bad"][1]))
        driver.shard.now += LEASE // 2
        await driver.shard.rescue()
        await driver.stop(cause)
        await driver.end_bad(cause)
        assert await driver.shard.state("f/slow") == "cancelled"
    late = await driver.turn(SettleRow("f/slow", token, "completed", "", "1", 0), want=0, worker="other")
    assert late.lost == ["f/slow"]
    assert await driver.done() == []
    await driver.undo(cause=cause)


# the root at the mark


@pytest.mark.parametrize("cause", ["cancelled", "timeout"])
async def test_a_root_that_waits_to_run_undoes_instead(driver: TreeDriver, cause: str) -> None:
    await _plant(driver, {})
    await driver.run()
    assert (await driver.states())["f"] == "waiting"
    await driver.stop(cause)
    await driver.undo(cause=cause)


@pytest.mark.parametrize("cause", ["cancelled", "timeout"])
@pytest.mark.parametrize("state", ["delayed", "parked", "waiting"])
async def test_a_root_that_is_put_off_undoes_at_once(driver: TreeDriver, cause: str, state: str) -> None:
    await _plant(driver, {})
    await driver.run()
    await driver.claim()
    await driver.end(state, "f", attempts=1, delay=7_200_000)
    await driver.stop(cause)
    assert [await driver.shard.members(*each) for each in (("delayed", STEPS), ("parked", ROOTS))] == [[], []]
    await driver.undo(cause=cause)


@pytest.mark.parametrize("cause", ["cancelled", "timeout"])
@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "delayed", "waiting", "parked"])
async def test_a_root_that_runs_at_the_mark_runs_again_to_undo(
    driver: TreeDriver, cause: str, state: str
) -> None:
    await _plant(driver, {})
    await driver.run()
    assert await driver.claim() == ["f"]
    token = driver.held["f"][1]
    await driver.stop(cause)
    assert await driver.shard.members("control", "w") == ["cancel:f"]
    await driver.shard.renew(("f", token))
    assert driver.shard.cancelled == ["f"]
    await driver.end(state, "f", attempts=1, delay=7_200_000)
    assert (await driver.states())["f"] == "waiting"
    await driver.undo(cause=cause)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_a_root_that_fails_for_good_undoes_its_tree(driver: TreeDriver, state: str) -> None:
    await _plant(driver, {})
    await driver.run()
    await driver.claim()
    await driver.end(state, "f", text='{"message":"hook"}')
    page = await driver.look()
    assert (page.root["stop"], page.root["stopper"], page.root["text"]) == (
        "failed",
        "f",
        '{"message":"hook"}',
    )
    await driver.undo()


async def test_a_root_that_stalls_too_often_undoes_its_tree(driver: TreeDriver) -> None:
    await _plant(driver, {})
    await driver.run()
    for _ in range(3):
        await driver.claim()
        assert await driver.lose(max_stalls=3) == ["f rescued"]
    await driver.claim()
    assert await driver.lose(max_stalls=3) == ["f rescued"]
    assert (await driver.look()).root["stop"] == "failed"
    await driver.undo()


@pytest.mark.parametrize("cause", _CAUSES)
async def test_a_root_that_undoes_may_be_parked_put_off_and_given_back(
    driver: TreeDriver, cause: str
) -> None:
    await _plant(driver, {})
    await driver.claim()
    await driver.stop(cause)
    await driver.end_bad(cause)
    assert await driver.claim() == ["f"]
    await driver.end("parked", "f")  # unknown here: it does not run until some worker knows it
    assert await driver.claim() == []
    await driver.shard.announce(queue=ROOTS, unpark=True)
    assert await driver.claim() == ["f"]
    await driver.end("delayed", "f", delay=1000, attempts=1)
    assert await driver.claim() == []
    driver.shard.now += 1000
    assert await driver.claim() == ["f"]
    await driver.end("waiting", "f")
    assert await driver.claim() == ["f"]
    for _ in range(3):
        assert await driver.lose(max_stalls=5) == ["f rescued"]
        assert await driver.claim() == ["f"]
    await driver.end("waiting", "f")
    await driver.undo(cause=cause)


async def test_while_it_is_undone_nothing_stops_it_again(driver: TreeDriver) -> None:
    await _plant(driver, {"a": ""})
    await driver.claim()
    await driver.end("completed", "f/a")
    await driver.stop("failed")
    await driver.claim()
    assert await driver.checkpoint("f", acknowledges=True) == "ok"
    assert await driver.cancel() == "over"
    driver.shard.now += round(TIMEOUT * 1000)
    await driver.turn(want=0)
    assert (await driver.look()).root["stop"] == "failed"
    assert await driver.shard.members("control", "w") == []
    await driver.end("delayed", "f", delay=0, attempts=1)
    assert await driver.claim() == ["f"]
    await driver.end("failed", "f", text='{"message":"undone"}')
    assert await driver.outcome("f") == ("failed", '{"message":"undone"}')


async def test_the_first_cause_stays(driver: TreeDriver) -> None:
    await _plant(driver, {"slow": ""})
    await driver.claim()
    await driver.stop("cancelled")
    await driver.end("failed", "f/bad", text="{}")
    driver.shard.now += round(TIMEOUT * 1000)
    await driver.turn(want=0)
    assert (await driver.look()).root["stop"] == "cancelled"
    await driver.end("failed", "f/slow", text="{}")
    await driver.undo(cause="cancelled")


# claims look at the mark


_MANY = [f"m{i}" for i in range(350)]


@pytest.mark.parametrize("cause", _CAUSES)
async def test_a_claim_takes_nothing_that_the_sweep_has_not_reached(driver: TreeDriver, cause: str) -> None:
    await _plant(driver, dict.fromkeys(_MANY, ""))
    await driver.claim(want=1)
    await driver.stop(cause)
    await driver.end_bad(cause)
    calls = 0
    while "f" not in driver.held:
        states = [await driver.shard.state(f"f/{each}") for each in _MANY]
        assert set(states) <= {"waiting", "cancelled"}
        assert states.count("cancelled") in range(99, len(_MANY) + 1)
        claims = await driver.claim(want=5)
        assert claims == [] or (claims == ["f"] and "waiting" not in states[:300])
        calls += 1
    assert calls <= 5
    assert {await driver.shard.state(f"f/{each}") for each in _MANY} == {"cancelled"}
    assert await driver.checkpoint("f", acknowledges=True) == "ok"
    await driver.end("failed", "f", text="{}")
    assert await driver.shard.members("due", "") == []


async def test_a_member_that_the_sweep_has_not_reached_and_that_runs_is_waited_for(
    driver: TreeDriver,
) -> None:
    await _plant(driver, dict.fromkeys(_MANY, ""))
    await driver.claim(want=340)
    slow = "f/m338"
    await driver.stop("failed")
    await driver.end("completed", *[each for each in driver.held if each != slow])
    for _ in range(6):
        assert await driver.claim() == []
    assert [await driver.shard.state(each) for each in (slow, "f/m349")] == ["active", "cancelled"]
    assert await driver.shard.state("f") == "waiting-children"
    await driver.end("completed", slow)
    assert (await driver.look(listed="done", first=338)).members[0].id == slow
    await driver.undo()


# members one by one


@pytest.mark.parametrize("is_active", [True, False])
async def test_a_member_that_is_cancelled_alone_stops_its_tree(driver: TreeDriver, is_active: bool) -> None:
    await driver.add(make_tree({"a": "", "b": "a"}))
    if is_active:
        await driver.claim()
    assert await driver.cancel("f/a") == ("asked" if is_active else "ended")
    if is_active:
        await driver.end("cancelled", "f/a", text="{}")
    page = await driver.look()
    assert (page.root["stop"], page.root["stopper"]) == ("failed", "f/a")
    await driver.undo()


@pytest.mark.parametrize("first", ["waiting", "delayed"])
async def test_what_is_put_back_in_the_call_that_stops_the_tree_ends_with_it(
    driver: TreeDriver, first: str
) -> None:
    await _plant(driver, {"a": "", "b": ""})
    await driver.claim()
    rows = [
        settle(*driver.held["f/a"], first, "", attempts=1),
        settle(*driver.held["f/bad"], "failed", "{}"),
        settle(*driver.held["f/b"], first, "", attempts=1),
    ]
    answer = await driver.turn(*rows)
    assert answer.claims == [] or [each.id for each in answer.claims] == ["f"]
    assert await driver.states() | {"f": ""} == {"f": "", "bad": "failed", "a": "cancelled", "b": "cancelled"}
    assert await driver.shard.members("ready", STEPS) == []
    assert await driver.shard.members("failed", STEPS) == []


async def test_what_one_settle_frees_and_the_next_stops_never_runs(driver: TreeDriver) -> None:
    await _plant(driver, {"a": "", "b": "a"})
    await driver.claim()
    answer = await driver.turn(
        settle(*driver.held["f/a"]), settle(*driver.held["f/bad"], "failed", "{}"), want=10
    )
    assert [each.id for each in answer.claims] == ["f"]
    assert await driver.states() == {"f": "active", "bad": "failed", "a": "completed", "b": "cancelled"}
