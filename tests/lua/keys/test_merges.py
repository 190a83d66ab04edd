"""Fewer jobs from many emissions of one key: throttled, debounced, and the last one kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.shards import QUEUE, Shard, add_queue, row

from eventbus.store.calls.control_store import Edit
from eventbus.store.scripting.script_rows import (
    DEBOUNCE,
    KEEP_LAST,
    SUPERSEDE,
    THROTTLE,
    AddRow,
    AddVerdict,
    SettleRow,
)

_LARGE = '{"d":"' + "x" * 600 + '"}'


def _throttled(job: str, span: int = 10_000, **given: Any) -> AddRow:
    return row(job, **{"key": "k", "print": "p", "meeting": THROTTLE, "span": span, **given})


def _debounced(job: str, delay: int = 5_000, span: int | str = "", **given: Any) -> AddRow:
    return row(job, **{"key": "k", "print": job, "meeting": DEBOUNCE, "delay": delay, "span": span, **given})


def _last(job: str, **given: Any) -> AddRow:
    return row(job, **{"key": "k", "print": job, "meeting": KEEP_LAST, **given})


async def _pointer(shard: Shard, queue: str = QUEUE) -> dict[str, str]:
    flat = await shard.command("HGETALL", shard.key("key", f"{queue}:k"))
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def _claim(shard: Shard, *bodies: str) -> tuple[list[str], str]:
    """Claim all; return the ids and the token."""
    answer = await shard.turn()
    if bodies:
        assert [each.body for each in answer.claims] == list(bodies)
    return [each.id for each in answer.claims], answer.token


def _end(job: str, token: str, state: str = "completed", text: str = "1") -> SettleRow:
    return SettleRow(job, token, state, "", text, 0)


async def _look(shard: Shard) -> list[Any]:
    """All that a row may change, but how many rows joined."""
    places = [await shard.command("ZRANGE", shard.key("delayed", QUEUE), 0, -1, "WITHSCORES")]
    places.append(await shard.command("LRANGE", shard.key("ready", QUEUE), 0, -1))
    record = await shard.record("a")
    record.pop("joined")
    return [*places, record, await _pointer(shard)]


def _joined(job: str, place: int = 0) -> AddVerdict:
    return AddVerdict(place, "joined", job, "open", "")


# throttle


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_within_the_window_a_key_has_one_job_whatever_became_of_it(shard: Shard, state: str) -> None:
    await shard.add(_throttled("a"))
    await shard.run(state, text='"r"')
    shard.now += 9_999
    assert await shard.add(_throttled("b", print="other")) == [AddVerdict(0, "joined", "a", state, '"r"')]
    shard.now += 1
    assert await shard.add(_throttled("c")) == []
    assert await shard.members("ready") == ["c"]


async def test_an_open_job_is_joined_after_the_window_too(shard: Shard) -> None:
    await shard.add(_throttled("a"))
    shard.now += 20_000
    assert await shard.add(_throttled("b")) == [_joined("a")]
    await shard.run("completed")
    assert await shard.add(_throttled("c")) == []


async def test_a_window_that_is_longer_than_the_ttl_of_keys_keeps_the_key(shard: Shard) -> None:
    await shard.add(_throttled("a", span=3 * 86_400_000))
    shard.now += 86_400_000
    await shard.run("completed")
    assert abs(await shard.ttl("key", f"{QUEUE}:k") - 2 * 86_400_000) < 5_000


async def test_throttled_rows_of_one_call_make_one_job(shard: Shard) -> None:
    verdicts = await shard.add(_throttled("a"), row("x"), _throttled("b"))
    assert verdicts == [_joined("a", 2)]
    assert sorted(await shard.members("ready")) == ["a", "x"]


async def test_a_key_without_a_window_is_free_when_its_job_has_ended(shard: Shard) -> None:
    await shard.add(row("a", key="k", print="p"))
    assert await shard.add(_throttled("b")) == [_joined("a")]
    await shard.run("completed")
    assert await shard.add(_throttled("c")) == []


# debounce


async def test_the_last_body_and_time_win_and_each_emitter_is_told(shard: Shard) -> None:
    for emitter in ("one", "two", "three"):
        await shard.open_replies(emitter)
    await shard.add(_debounced("a"), emitter="one")
    shard.now += 4_000
    assert await shard.add(_debounced("b", body=_LARGE), emitter="two") == [_joined("a")]
    shard.now += 4_000
    assert await shard.add(_debounced("c"), emitter="three") == [_joined("a")]
    assert await shard.command("EXISTS", shard.key("body", "a")) == 0
    assert await shard.score("delayed", QUEUE, "a") == shard.now + 5_000
    shard.now += 4_999
    assert (await _claim(shard))[0] == []
    shard.now += 1
    ids, token = await _claim(shard, '{"d":"c"}')
    assert ids == ["a"]
    await shard.turn(_end("a", token, text="7"), want=0)
    for emitter in ("one", "two", "three"):
        assert await shard.replies(emitter) == [[("a", "completed", 1, "7")]]


async def test_a_debounced_job_waits_no_longer_than_the_longest_time(shard: Shard) -> None:
    first = shard.now
    await shard.add(_debounced("a", span=12_000))
    for _ in range(3):
        shard.now += 3_000
        await shard.add(_debounced(f"b{shard.now}", span=12_000))
    assert await shard.score("delayed", QUEUE, "a") == first + 12_000
    shard.now = first + 13_000
    await shard.add(_debounced("z", span=12_000))  # its time has passed, but no worker came
    assert await shard.score("delayed", QUEUE, "a") == shard.now
    assert (await _claim(shard, '{"d":"z"}'))[0] == ["a"]


async def test_what_waits_for_a_worker_gets_the_last_body_and_keeps_its_place(shard: Shard) -> None:
    await shard.add(_debounced("a"))
    shard.now += 5_000
    await shard.turn(want=0)
    await shard.add(row("x"))
    assert await shard.add(_debounced("b", body=_LARGE)) == [_joined("a")]
    assert (await _claim(shard, _LARGE, '{"d":"x"}'))[0] == ["a", "x"]


async def test_what_comes_once_the_job_has_begun_makes_one_next_job(shard: Shard) -> None:
    await shard.add(_debounced("a"))
    shard.now += 5_000
    _, token = await _claim(shard)
    assert await shard.add(_debounced("b")) == []
    assert await shard.add(_debounced("c")) == [_joined("b")]
    shard.now += 2_000
    await shard.turn(_end("a", token), want=0)
    assert (await _claim(shard))[0] == []  # it is not due
    assert await _pointer(shard) == {"job": "b", "print": "c", "seen": "a b c"}
    shard.now += 3_000
    assert (await _claim(shard, '{"d":"c"}'))[0] == ["b"]


async def test_a_next_job_whose_time_has_come_waits_for_the_end_of_the_one_before(shard: Shard) -> None:
    await shard.add(_debounced("a"))
    shard.now += 5_000
    _, token = await _claim(shard)
    await shard.add(_debounced("b"))
    for _ in range(3):
        shard.now += 61_000
        await shard.renew(("a", token))
        assert (await _claim(shard))[0] == []
    end = shard.now
    await shard.turn(_end("a", token), want=0)
    answer = await shard.turn()
    assert [(each.id, each.due) for each in answer.claims] == [("b", end)]


# keep the last


async def test_when_no_job_of_the_key_runs_the_last_is_run_at_once(shard: Shard) -> None:
    await shard.add(_last("a"))
    assert await shard.add(_last("b"), _last("c")) == [_joined("a"), _joined("a", 1)]
    ids, token = await _claim(shard, '{"d":"c"}')
    await shard.turn(_end("a", token), want=0)
    assert ids == ["a"]
    assert await shard.add(_last("d")) == []
    assert (await _claim(shard))[0] == ["d"]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_while_a_job_runs_the_last_emission_alone_becomes_the_next_one(
    shard: Shard, state: str
) -> None:
    for emitter in ("one", "two"):
        await shard.open_replies(emitter)
    await shard.add(_last("a"))
    _, token = await _claim(shard)
    assert await shard.add(_last("b"), emitter="one") == []
    assert await shard.add(_last("c"), emitter="two") == [_joined("b")]
    assert (await _claim(shard))[0] == []
    answer = await shard.turn(_end("a", token, state))
    assert [(each.id, each.body) for each in answer.claims] == [("b", '{"d":"c"}')]  # in the same call
    await shard.turn(_end("b", answer.token, text="7"), want=0)
    for emitter in ("one", "two"):
        assert await shard.replies(emitter) == [[("b", "completed", 1, "7")]]
    assert (await _pointer(shard))["state"] == "completed"


async def test_a_job_that_waits_for_its_retry_has_begun(shard: Shard) -> None:
    await shard.add(_last("a"))
    _, token = await _claim(shard)
    await shard.turn(_end("a", token, "delayed")._replace(attempts=1, delay=1_000), want=0)
    assert await shard.add(_last("b")) == []
    shard.now += 1_000
    ids, token = await _claim(shard, '{"d":"a"}')
    assert ids == ["a"]
    await shard.turn(_end("a", token), want=0)
    assert (await _claim(shard))[0] == ["b"]


async def test_what_was_given_back_keeps_its_body_where_a_next_job_is_there(shard: Shard) -> None:
    await shard.add(_last("a"))
    _, token = await _claim(shard)
    await shard.add(_last("b"))
    await shard.turn(_end("a", token, "waiting"), want=0)
    assert await shard.add(_last("c")) == [_joined("b")]
    assert (await _claim(shard, '{"d":"a"}'))[0] == ["a"]


@pytest.mark.parametrize(("due", "is_next"), [(0, True), (5_000, False)])
async def test_an_edit_says_when_the_next_job_may_begin_and_it_never_begins_before_the_end_of_the_other(
    shard: Shard, due: int, is_next: bool
) -> None:
    await shard.add(_debounced("a"))
    shard.now += 5_000
    _, token = await _claim(shard)
    await shard.add(_debounced("b"))
    edit = Edit("b", "call", ("waiting", "delayed"), due=due)
    assert await shard.store.controls.edit(edit, now=shard.now) == "changed"
    assert (await _claim(shard))[0] == []
    await shard.turn(_end("a", token), want=0)
    assert (await _claim(shard))[0] == (["b"] if is_next else [])
    shard.now += 5_000
    assert (await _claim(shard))[0] == ([] if is_next else ["b"])


async def test_a_worker_that_dies_leaves_the_job_and_the_next_one_in_their_order(shard: Shard) -> None:
    await shard.add(_last("a"))
    await _claim(shard)
    await shard.add(_last("b"))
    shard.now += 11_000
    await shard.rescue()
    assert await shard.add(_last("c")) == [_joined("b")]
    answer = await shard.turn(worker="other")
    assert [each.id for each in answer.claims] == ["a"]
    await shard.turn(_end("a", answer.token, "completed"), worker="other", want=0)
    assert (await _claim(shard, '{"d":"c"}'))[0] == ["b"]


async def test_a_cancel_of_the_running_job_lets_the_next_one_go_on(shard: Shard) -> None:
    await shard.add(_last("a"))
    _, token = await _claim(shard)
    await shard.add(_last("b"))
    assert await shard.cancel("a") == ["asked"]
    await shard.turn(_end("a", token), want=0)
    assert (await _claim(shard))[0] == ["b"]


async def test_a_cancel_of_the_next_job_makes_room_for_another(shard: Shard) -> None:
    await shard.add(_last("a"))
    _, token = await _claim(shard)
    await shard.add(_last("b"))
    assert await shard.cancel("b") == ["ended"]
    assert await shard.add(_last("c")) == []
    await shard.turn(_end("a", token), want=0)
    assert (await _claim(shard))[0] == ["c"]


async def test_who_supersedes_a_key_cancels_its_next_job_too(shard: Shard) -> None:
    await shard.add(_last("a"))
    await _claim(shard)
    await shard.add(_last("b"))
    await shard.add(row("s", key="k", print="s", meeting=SUPERSEDE))
    assert await shard.state("b") == "cancelled"
    assert (await _claim(shard))[0] == ["s"]


async def test_a_next_job_goes_on_by_itself_when_the_record_of_the_other_is_lost(shard: Shard) -> None:
    await shard.add(_last("a"))
    await _claim(shard)
    await shard.add(_last("b"))
    await shard.command("UNLINK", shard.key("job", "a"), shard.key("more", "a"))
    shard.now += 60_000
    assert (await _claim(shard))[0] == ["b"]
    assert (await _pointer(shard))["job"] == "b"


# what holds for all


@pytest.mark.parametrize("make", [_throttled, _debounced, _last])
async def test_a_repeat_changes_nothing(shard: Shard, make: Any) -> None:
    await shard.add(make("a"))
    await shard.add(make("b"))
    await shard.add(make("c"))
    shard.now += 1_000
    before = await _look(shard)
    for job in ("a", "b", "c"):
        assert await shard.add(make(job)) == ([_joined("a")] if job != "a" else [])
    assert await _look(shard) == before


async def test_a_repeat_that_comes_late_puts_no_older_body_back(shard: Shard) -> None:
    await shard.add(_last("a"))
    await shard.add(_last("b"))
    _, token = await _claim(shard)
    await shard.add(_last("c"))
    await shard.turn(_end("a", token), want=0)
    assert await shard.add(_last("b")) == [_joined("c")]
    assert (await _claim(shard, '{"d":"c"}'))[0] == ["c"]


@pytest.mark.parametrize("make", [_throttled, _debounced, _last])
async def test_keys_are_judged_for_each_group(shard: Shard, make: Any) -> None:
    await shard.announce(group="audit")
    await shard.add(make("a"))
    shard.now += 5_000
    ids, token = await _claim(shard)
    await shard.turn(_end(ids[0], token), want=0)
    assert ids == ["a"]
    shard.now += 5_000
    assert await shard.add(make("b")) == []
    audit = await shard.members("ready", f"{QUEUE}@audit") + await shard.members("delayed", f"{QUEUE}@audit")
    assert audit == ["a@audit"]


@pytest.mark.parametrize("make", [_throttled, _last])
async def test_a_full_queue_takes_no_new_job_but_another_body(shard: Shard, make: Any) -> None:
    queue = [add_queue(max_waiting=2)]
    await shard.add(make("a"), row("x"), queues=queue)
    assert await shard.add(make("b"), queues=queue) == [_joined("a")]
    assert [each.word for each in await shard.add(make("c", key="l"), queues=queue)] == ["full"]
    assert await shard.state("c") is None


async def test_a_next_job_is_refused_where_it_cannot_be_placed(shard: Shard) -> None:
    await shard.add(_last("a"))
    _, token = await _claim(shard)
    await shard.command("SET", shard.key("delayed", QUEUE), "mine")
    assert [each.word for each in await shard.add(_last("b"))] == ["foreign"]
    await shard.command("DEL", shard.key("delayed", QUEUE))
    assert await shard.add(_last("b")) == []
    await shard.turn(_end("a", token), want=0)
    assert (await _claim(shard))[0] == ["b"]


@pytest.mark.parametrize("make", [_debounced, _last])
async def test_two_hundred_rows_of_a_key_in_one_call_leave_the_last_body(shard: Shard, make: Any) -> None:
    verdicts = await shard.add(*(make(f"j{n}") for n in range(200)))
    assert len(verdicts) == 199
    shard.now += 5_000
    assert (await _claim(shard, '{"d":"j199"}'))[0] == ["j0"]


async def test_emitters_that_race_are_one_job_each_time(shard: Shard) -> None:
    await asyncio.gather(*(shard.add(_last(f"j{n}")) for n in range(20)))
    ids, _ = await _claim(shard)
    assert len(ids) == 1


@pytest.mark.parametrize("fate", ["waits", "runs", "has ended"])
async def test_a_row_that_later_ones_of_its_emitter_have_overtaken_joins_what_is_there(
    shard: Shard, fate: str
) -> None:
    """Calls under way that break together are repeated in any order."""
    await shard.add(_last("0-em-00000002"))
    if fate != "waits":
        _, token = await _claim(shard)
        if fate == "has ended":
            await shard.turn(_end("0-em-00000002", token), want=0)
    state = ("completed", "1") if fate == "has ended" else ("open", "")
    assert await shard.add(_last("0-em-00000001")) == [AddVerdict(0, "joined", "0-em-00000002", *state)]
    assert (await _claim(shard))[0] == (["0-em-00000002"] if fate == "waits" else [])


async def test_what_is_kept_of_emitters_that_came_is_bounded(shard: Shard) -> None:
    for number in range(100):
        await shard.add(*(_last(f"0-{number:012x}-{count:08x}") for count in range(2)))
    seen = (await _pointer(shard))["seen"]
    assert len(seen) < 1100
    assert seen.endswith(f"0-{99:012x}-00000001")
