"""Damaged and foreign records: such a job is set apart, and the other jobs of the call go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drivers.shards import LEASE, QUEUE, Shard, row, settle

from eventbus.store.scripting.script_rows import NoteRow

_IDS = [f"j{i:03}" for i in range(100)]
_BAD = "j050"
_REST = [each for each in _IDS if each != _BAD]
_LARGE = '"' + "b" * 300 + '"'

_NUMBERS = ["x", "", "nan", "inf", "0x10", "1e5", "1.5", "9" * 18, "-", " 1"]

# What is done to the record of one job: commands, `job` and so on standing for its keys; CUT with the bytes
# that are left, and CHANGE with a field and its value.
_DAMAGES: dict[str, list[tuple[Any, ...]]] = {
    "record missing": [("DEL", "job")],
    "record empty": [("SET", "job", "")],
    "record another string": [("SET", "job", "junk")],
    "record a list": [("DEL", "job"), ("RPUSH", "job", "junk")],
    "record a hash": [("DEL", "job"), ("HSET", "job", "x", "y")],
    "format unknown": [("SETRANGE", "job", 0, "@")],
    **{f"state {code}": [("SETRANGE", "job", 0, chr(0x20 + code))] for code in (7, 10, 15)},
    **{f"cut off at {length}": [("CUT", "job", length)] for length in (1, 2, 8, 9, 10, 20, 28)},
    "no queue": [("SETRANGE", "job", 9, "\0")],
    "queue too long": [("SETRANGE", "job", 9, b"\xff")],
    "queue another": [("CHANGE", "job", "queue", "event.other")],
    "reply too long": [("SETRANGE", "job", 10 + len(QUEUE), b"\xff")],
    "a member of nothing": [("SETRANGE", "job", 1, "!")],
    "further fields a string": [("CHANGE", "job", "why", "x"), ("DEL", "more"), ("SET", "more", "junk")],
    **{
        f"{field} {value!r}": [("CHANGE", "job", "why", ""), ("HSET", "more", field, value)]
        for field in ("attempts", "stalls", "priority", "due")
        for value in _NUMBERS
    },
}
_AT_CLAIM = {
    "state delayed": [("CHANGE", "job", "state", "delayed")],
    "state parked": [("CHANGE", "job", "state", "parked")],
    "state failed": [("CHANGE", "job", "ended", 1, "result", "1", "state", "failed")],
    "body missing": [("DEL", "body")],
    "body a list": [("DEL", "body"), ("RPUSH", "body", "junk")],
}
_HARMLESS = {
    "log a string": [("SET", "log", "junk")],
    "waiters a string": [("SET", "waiters", "junk"), ("CHANGE", "job", "joined", 1)],
    "waiters foreign": [("SADD", "waiters", "\x00\x01"), ("CHANGE", "job", "joined", "yes")],
    "result a list": [("RPUSH", "result", "junk")],
    "progress a list": [("RPUSH", "progress", "junk")],
    "key pointer a string": [("DEL", "key"), ("SET", "key", "junk")],
    "key pointer empty": [("DEL", "key")],
    "key another": [("CHANGE", "job", "key", "{other}:x")],
    "reply another": [("CHANGE", "job", "reply", "\x00nobody")],
    "replies a string": [("SET", "replies", "junk")],
    "token another": [("CHANGE", "job", "claimed", 1, "token", "x")],
    "foreign field": [("HSET", "more", "x", "y" * 1000)],
    "foreign fields of a plain job": [("SETRANGE", "job", 1, b"\x00"), ("HSET", "more", "x", "y")],
}


async def _damage(shard: Shard, commands: list[tuple[Any, ...]], planted: set[str], job: str = _BAD) -> None:
    kinds = ("job", "more", "body", "log", "waiters", "result", "progress")
    names = {kind: shard.key(kind, job) for kind in kinds}
    names |= {"key": shard.key("key", f"{QUEUE}:{job}"), "replies": shard.key("replies", "em")}
    planted.update(names.values())
    for command, kind, *rest in commands:
        if command == "CUT":
            await shard.cut(job, *rest)
        elif command == "CHANGE":
            await shard.change(job, **dict(zip(rest[::2], rest[1::2], strict=True)))
        else:
            await shard.command(command, names[kind], *rest)


async def _assert_set_apart(shard: Shard, planted: set[str], queue: str = QUEUE) -> None:
    """The damaged job failed, says so, and what stood there is kept for a while."""
    record = await shard.record(_BAD)
    assert (record["state"], record["queue"]) == ("failed", queue)
    assert await shard.members("failed", queue) == [_BAD]
    (outcome,) = await shard.store.look("em", [_BAD], join=False)
    error = json.loads(outcome.text or "")
    assert error["type"] == "StoreCorrupt"
    assert _BAD in error["message"]
    if await shard.command("EXISTS", shard.key("raw", _BAD)):
        assert 0 < await shard.ttl("raw", _BAD) <= 7 * 86_400_000
    planted.discard(shard.key("job", _BAD))


@pytest.mark.parametrize("damage", {**_DAMAGES, **_AT_CLAIM})
async def test_a_damaged_record_among_a_hundred_is_set_apart_and_the_others_run(
    shard: Shard, damage: str, planted: set[str]
) -> None:
    await shard.open_replies()
    await shard.add(*(row(each, body=_LARGE, key=each, print="p") for each in _IDS))
    commands = {**_DAMAGES, **_AT_CLAIM}[damage]
    await _damage(shard, commands, planted)
    found = await shard.command("TYPE", shard.key("job", _BAD))
    dump = await shard.command("DUMP", shard.key("job", _BAD))
    answer = await shard.turn()
    assert [claim.id for claim in answer.claims] == _REST
    assert answer.aparts == (await shard.turn(call=1)).aparts == [_BAD], (
        "its worker is told, and a repeat says the same"
    )
    assert answer.more == []
    assert await shard.members("ready") == []
    await _assert_set_apart(shard, planted)
    assert await shard.command("TYPE", shard.key("raw", _BAD)) == found
    assert await shard.command("DUMP", shard.key("raw", _BAD)) == dump
    assert (await shard.turn(*(settle(each, answer.token) for each in answer.claims))).lost == []
    assert len(await shard.members("completed")) == 99


_NAMING = ("further", "attempts", "stalls", "priority", "due", "a member")
"""The damages that leave the queue to be read."""


async def _damage_each(shard: Shard, planted: set[str]) -> dict[str, str | None]:
    """Damage the first jobs, each in another way; return their ids with the queue that they still name."""
    queues: dict[str, str | None] = {}
    for job, (name, commands) in zip(_IDS, _DAMAGES.items(), strict=False):
        if name == "queue another":
            continue  # a sound record, but for whoever finds it in a queue
        await _damage(shard, commands, planted, job)
        queues[job] = QUEUE if name.startswith(_NAMING) else None
    return queues


async def _assert_listed(shard: Shard, queues: dict[str, str | None]) -> None:
    """Each damaged job is failed in the queue that it named, or in `unknown` for a while."""
    for job, queue in queues.items():
        assert await shard.state(job) == "failed"
        assert await shard.score("failed", queue or "unknown", job) is not None
        if not queue:
            for kind, name in (("job", job), ("failed", "unknown")):
                assert 0 < await shard.ttl(kind, name) <= 7 * 86_400_000


async def test_damaged_records_among_due_jobs_are_set_apart_and_the_others_promoted(
    shard: Shard, planted: set[str]
) -> None:
    await shard.add(*(row(each, delay=10, reply=0) for each in _IDS))
    queues = await _damage_each(shard, planted)
    shard.now += 10
    answer = await shard.turn(want=0)
    assert answer.next_due == -1
    assert sorted(answer.aparts) == sorted(queues), "its worker is told"
    await _assert_listed(shard, dict.fromkeys(queues, QUEUE))
    assert await shard.members("ready") == [each for each in _IDS if each not in queues]


async def test_damaged_records_among_stalled_jobs_are_set_apart_and_the_others_rescued(
    shard: Shard, planted: set[str]
) -> None:
    await shard.add(*(row(each, reply=0) for each in _IDS))
    await shard.turn()
    queues = await _damage_each(shard, planted)
    shard.now += LEASE
    rest = [each for each in _IDS if each not in queues]
    assert await shard.rescue() == (-1, rest, [])
    assert sorted(shard.apart) == sorted(queues), "its worker is told"
    await _assert_listed(shard, queues)
    assert await shard.members("ready") == rest


async def test_a_sound_record_found_out_of_its_place_without_its_own_is_set_apart_or_placed_anew(
    shard: Shard,
) -> None:
    await shard.add(row("a"), row("b", delay=10))
    await shard.turn()
    for job, state in (("a", "delayed"), ("b", "waiting")):
        await shard.change(job, state=state)
    shard.now += LEASE
    assert await shard.rescue() == (-1, [], [])
    assert shard.apart == ["a"]
    await shard.turn(want=0)
    assert await shard.members("failed") == ["a"]
    assert await shard.members("ready") == ["b"], "whether it has an entry nobody can know, so it gets one"


@pytest.mark.parametrize("damage", _DAMAGES)
async def test_the_settle_of_a_damaged_record_harms_no_other(
    shard: Shard, damage: str, planted: set[str]
) -> None:
    states = ["completed", "failed", "cancelled", "delayed", "waiting", "parked"]
    await shard.open_replies()
    await shard.add(*(row(each, key=each) for each in states), row("sound"))
    answer = await shard.turn()
    for each in states:
        await _damage(shard, _DAMAGES[damage], planted, each)
    ends = [
        settle(each, answer.token, state, attempts=1)
        for each, state in zip(answer.claims, states, strict=False)
    ]
    ends.append(settle(answer.claims[-1], answer.token))
    answer = await shard.turn(*ends, want=0)
    assert "sound" not in answer.lost
    assert await shard.state("sound") == "completed"
    for _ in range(3):  # wherever the damaged ones went, they end
        shard.now += LEASE
        await shard.rescue()
        for each in (await shard.turn()).claims:
            await shard.turn(settle(each, f"w:{shard.calls('w')}"), want=0)
    assert await shard.held() == []
    assert await shard.members("ready") == []


@pytest.mark.parametrize("damage", _HARMLESS)
async def test_damage_beside_the_record_keeps_no_job_from_running(
    shard: Shard, damage: str, planted: set[str]
) -> None:
    states = ["completed", "failed", "cancelled", "delayed", "waiting", "parked"]
    await shard.add(*(row(each, key=each, print="p") for each in states))
    for each in states:
        await _damage(shard, _HARMLESS[damage], planted, each)
    answer = await shard.turn()
    assert [each.id for each in answer.claims] == states
    ends = [
        settle(each, answer.token, state, "x" * 100, attempts=1)
        for each, state in zip(answer.claims, states, strict=True)
    ]
    assert (await shard.turn(*ends, want=0)).lost == []
    assert [await shard.state(each) for each in states] == [*states[:3], "waiting", "waiting", "parked"]


@pytest.mark.parametrize(
    "commands",
    [
        [("SET", "key", "junk")],
        [("HSET", "key", "x", "y")],
        [("HSET", "key", "job", "elsewhere"), ("SET", "other", "junk")],
        [("HSET", "key", "job", "none", "print", "p")],
    ],
)
async def test_a_foreign_key_pointer_is_a_free_key(
    shard: Shard, commands: list[tuple[str, ...]], planted: set[str]
) -> None:
    names = {"key": shard.key("key", f"{QUEUE}:k"), "other": shard.key("job", "elsewhere")}
    planted.update(names.values())
    for command, name, *rest in commands:
        await shard.command(command, names[name], *rest)
    assert await shard.add(row("a", key="k", print="p")) == []
    assert await shard.command("HGET", names["key"], "job") == "a"


async def test_a_job_set_apart_tells_everybody_who_waits_and_frees_its_key(shard: Shard) -> None:
    for emitter in ("em", "two"):
        await shard.open_replies(emitter)
    await shard.add(row("a", key="k"))
    await shard.add(row("b", key="k"), emitter="two")
    await shard.change("a", stalls="junk")
    await shard.turn()
    for emitter in ("em", "two"):
        ((told,),) = await shard.replies(emitter)
        assert told[:2] == ("a", "failed")
    assert await shard.add(row("c", key="k")) == []


async def test_a_key_whose_pointer_missed_the_end_of_its_job_follows_the_record(shard: Shard) -> None:
    await shard.add(row("a", key="k", print="p"), row("b", key="l", print="p"))
    await shard.run("completed", "failed", text="3")
    for key in ("k", "l"):
        await shard.command("HDEL", shard.key("key", f"{QUEUE}:{key}"), "state", "text")
    (verdict,) = await shard.add(row("c", key="k", print="p"), row("d", key="l", print="p"))
    assert verdict == (0, "joined", "a", "completed", "3")
    assert await shard.members("ready") == ["d"]


async def test_a_stray_entry_of_a_sound_job_is_removed_and_the_job_is_left_alone(shard: Shard) -> None:
    await shard.add(row("done"), row("running"), row("late", delay=5))
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token), want=0)
    before = [await shard.record(each) for each in ("done", "running", "late")]
    for each in ("done", "late"):
        await shard.command("RPUSH", shard.key("ready", QUEUE), each)
        await shard.command("HSET", shard.key("held", "w"), each, "0" * 15 + "w:1")
        await shard.command("HSET", shard.key("held", "dead"), "#", "", each, "")
    await shard.command("ZADD", shard.shard_key("workers"), 1, "dead")
    await shard.rescue()
    assert await shard.held("dead") == []
    await shard.renew(("running", answer.token), calls=(2, 0))
    assert await shard.held() == ["running"]
    assert (await shard.turn()).claims == []
    assert await shard.members("ready") == []
    assert [await shard.record(each) for each in ("done", "running", "late")] == before
    assert await shard.members("failed") == []


@pytest.mark.parametrize("member", ["with space", "\udcff\udcfe", "{x}", "a:b:c", ""])
async def test_a_foreign_member_of_a_queue_is_set_apart(shard: Shard, member: str) -> None:
    await shard.add(row("a"))
    await shard.command("RPUSH", shard.key("ready", QUEUE), member.encode("utf-8", "surrogateescape"))
    assert [each.id for each in (await shard.turn()).claims] == ["a"]
    assert await shard.members("failed") == [member]


async def test_a_body_that_is_no_utf_8_is_claimed_and_left_to_its_reader(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    record = await shard.command("GET", shard.key("job", "a"))
    spoilt = record.replace('{"d":"a"}', "\udcff\udcfe").encode("utf-8", "surrogateescape")
    await shard.command("SET", shard.key("job", "a"), spoilt)
    answer = await shard.turn()
    assert [each.body for each in answer.claims] == ["\udcff\udcfe", '{"d":"b"}']
    assert (await shard.turn(settle(answer.claims[0], answer.token, "failed", "{}"))).lost == []


async def test_a_foreign_queue_key_refuses_its_own_calls_and_changes_nothing(
    shard: Shard, planted: set[str]
) -> None:
    name = shard.shard_key("grouped")
    planted.add(name)
    await shard.command("SET", name, "junk")
    with pytest.raises(Exception, match="WRONGTYPE") as caught:
        await shard.add(row("a"))
    assert type(caught.value).__name__ == "StoreRefused"
    assert set(await shard.command("KEYS", f"{shard.store.keys.root}:*")) == {name, shard.shard_key("queues")}


async def test_lookups_renewals_and_notes_of_damaged_records_answer(shard: Shard, planted: set[str]) -> None:
    await shard.add(*(row(each) for each in _IDS))
    answer = await shard.turn()
    damaged = await _damage_each(shard, planted)
    sound = [each for each in _IDS if each not in damaged]
    found = await shard.store.look("em", _IDS, join=True)
    assert {each.state for each in found if each.job in sound} == {
        "waiting"
    }  # of many it is not asked who runs
    (one,) = await shard.store.look("em", sound[:1], join=False)
    assert one.state == "active"
    lost = await shard.renew(*((each, answer.token) for each in _IDS))
    assert set(lost) <= set(damaged)
    assert set(await shard.store.note([NoteRow(each, answer.token, "1") for each in _IDS])) == set(lost)
    assert await shard.announce(unpark=True) == 0
