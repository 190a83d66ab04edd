"""The times of attempts: the first start in `more`, and due, began, ended and worker in each entry of the
log.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from drivers.shards import LEASE, START, Shard, row, settle

_ERROR = '{"type":"E","message":"a \\"}\\nb"}'


async def _log(shard: Shard, job: str) -> list[Any]:
    return [json.loads(each) for each in await shard.command("LRANGE", shard.key("log", job), 0, -1)]


def _times(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[name] for name in ("due", "began", "ended", "worker", "kind"))


async def test_each_failed_attempt_keeps_its_times_and_the_job_its_first_start(shard: Shard) -> None:
    await shard.add(row("a"))
    for attempt, worker in enumerate(["w", "w7+", "w"], 1):
        shard.now += 10
        answer = await shard.turn(worker=worker)
        shard.now += 5
        failed = settle(answer.claims[0], answer.token, "delayed", _ERROR, attempts=attempt, delay=100)
        await shard.turn(failed, worker=worker)
        assert (await shard.record("a"))["first"] == str(START + 10)
        shard.now += 100
    log = await _log(shard, "a")
    assert [_times(each) for each in log] == [
        (0, START + 10, START + 15, "w", "failed"),
        (START + 115, START + 125, START + 130, "w7", "failed"),
        (START + 230, START + 240, START + 245, "w", "failed"),
    ]
    assert {each["message"] for each in log} == {'a "}\nb'}


async def test_a_retry_at_once_keeps_the_first_start_and_a_first_run_that_completes_writes_none(
    shard: Shard,
) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    shard.now += 5
    one, other = answer.claims
    again = await shard.turn(
        settle(one, answer.token, "delayed", _ERROR, attempts=1, delay=0), settle(other, answer.token)
    )
    shard.now += 5
    await shard.turn(settle(again.claims[0], again.token))
    assert (await shard.record("a"))["first"] == str(START)
    assert "first" not in await shard.record("b")
    assert await shard.command("EXISTS", shard.key("more", "b"), shard.key("log", "b")) == 0


async def test_a_stall_keeps_its_times_also_where_it_is_the_end_of_the_job(shard: Shard) -> None:
    await shard.add(row("a"))
    for stalls in (1, 2):
        await shard.turn()
        shard.now += LEASE
        await shard.rescue(max_stalls=1)
        first, *rest = await _log(shard, "a")
        assert len(rest) == stalls - 1
    assert _times(first) == (0, START, START + LEASE, "w", "stalled")
    record = await shard.record("a")
    assert (record["state"], record["first"], record["worker"]) == ("failed", str(START), "w")
    outcome = await shard.command("GET", shard.key("result", "a"))
    assert json.loads(outcome) == rest[0], "told once, though both have it"


async def test_what_is_put_off_with_a_reason_says_so_and_what_is_put_off_without_one_logs_nothing(
    shard: Shard,
) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    one, other = answer.claims
    await shard.turn(
        settle(one, answer.token, "delayed", _ERROR, delay=100),
        settle(other, answer.token, "delayed", "", delay=100),
        want=0,
    )
    (kept,) = await _log(shard, "a")
    assert kept["kind"] == "put-off"
    assert await _log(shard, "b") == []
    assert (await shard.record("b"))["first"] == str(START)


@pytest.mark.parametrize("text", ["junk", '"text"', "[1]", "{}", '{"type":"E"'])
async def test_text_that_is_no_object_with_fields_is_kept_as_it_is(shard: Shard, text: str) -> None:
    await shard.add(row("a"))
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token, "delayed", text, attempts=1, delay=100), want=0)
    assert await shard.command("LRANGE", shard.key("log", "a"), 0, -1) == [text]


async def test_a_job_that_is_given_back_unread_has_not_started_and_one_that_had_begun_has(
    shard: Shard,
) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    one, other = answer.claims
    await shard.turn(
        settle(one, answer.token, "waiting", "begun"), settle(other, answer.token, "waiting", ""), want=0
    )
    assert (await shard.record("a"))["first"] == str(START)
    assert "first" not in await shard.record("b")


async def test_a_turn_that_is_sent_again_logs_its_failures_once(shard: Shard) -> None:
    """`turn-not-answered`."""
    await shard.add(row("a"))
    answer = await shard.turn()
    failed = settle(answer.claims[0], answer.token, "delayed", _ERROR, attempts=1, delay=100)
    for _ in range(2):
        await shard.turn(failed, call=2)
        shard.now += 1
    assert len(await _log(shard, "a")) == 1
