"""Firing: each slot becomes one job, whatever happens to who fires."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from drivers.shards import QUEUE, Shard, settle

from eventbus.schedules.firing import make_row
from eventbus.schedules.plan import Plan
from eventbus.schedules.timetable import Timetable
from eventbus.store.scripting.script_rows import DueRow, FireRow, ScheduleRow
from eventbus.store.store import Store

_EVERY = 60_000
_TTL = 1000


class _Schedules:
    """Schedules of one shard that fire each minute, called with the test's own time."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.first = shard.now + _EVERY

    async def put(self, name: str = "s", **given: Any) -> str:
        rows = (await self.shard.store.schedules.look(name)).rows
        given = {"slot": self.first, "due": self.first, "plan": "{}", "digest": "1", **given}
        word, _ = await self.shard.store.schedules.change(
            "put", name, **_seen(rows), queue=QUEUE, now=self.shard.now, **given
        )
        return word

    async def due(self) -> list[DueRow]:
        return (await self.shard.store.schedules.fire([], key_ttl_ms=_TTL, now=self.shard.now)).due

    async def fire(self, *rows: FireRow) -> list[str]:
        answer = await self.shard.store.schedules.fire(rows, key_ttl_ms=_TTL, now=self.shard.now)
        return answer.words

    async def state(self, name: str = "s") -> Any:
        return (await self.shard.store.schedules.look(name)).rows[0]


def _seen(rows: Sequence[DueRow | ScheduleRow]) -> dict[str, Any]:
    return {"seen": rows[0].gen, "seen_slot": rows[0].slot} if rows else {"seen": ""}


def _row(due: DueRow, **given: Any) -> FireRow:
    slot = int(due.slot)
    row = FireRow(
        id=due.id, gen=due.gen, slot=due.slot, fire=slot, next=slot + _EVERY, due=slot + _EVERY, wait=0,
        missed=0, queue=QUEUE, has_default=1, job=f"{due.id}~{due.gen}.{slot}", body="{}",
        key=f"sched:{due.id}:{slot}", print="p", overlap="skip", late=0, pauses=0,
    )  # fmt: skip
    return row._replace(**given)


async def _ready(shard: Shard, queue: str = QUEUE) -> list[str]:
    return await shard.members("ready", queue)


async def test_a_slot_becomes_one_job_and_the_schedule_moves_on(shard: Shard) -> None:
    schedules = _Schedules(shard)
    assert await schedules.put() == "new"
    assert await schedules.due() == []
    shard.now = schedules.first
    [due] = await schedules.due()
    assert (due.id, due.slot, due.plan) == ("s", str(schedules.first), "{}")
    row = _row(due)
    assert await schedules.fire(row) == ["fired"]
    assert await _ready(shard) == [row.job]
    state = await schedules.state()
    assert (state.slot, state.last, state.lastjob) == (str(row.next), str(row.fire), row.job)
    assert (state.due, state.fired, state.missed) == (str(row.next), "1", "")
    assert await schedules.due() == []


async def test_a_schedule_that_is_due_when_it_is_made_is_handed_out_at_once(shard: Shard) -> None:
    schedules = _Schedules(shard)
    assert await schedules.put(slot=shard.now, due=shard.now) == "new"
    assert (await shard.turn()).has_duty


async def test_a_call_whose_answer_was_lost_fires_nothing_when_it_is_sent_again(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    [due] = await schedules.due()
    assert await schedules.fire(_row(due)) == ["fired"]
    shard.now += 3 * _EVERY
    assert await schedules.fire(_row(due)) == ["stale"]
    assert len(await _ready(shard)) == 1


async def test_two_who_fire_at_once_make_one_job(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    [due] = await schedules.due()
    words = await asyncio.gather(*(schedules.fire(_row(due)) for _ in range(20)))
    assert sorted(each for [each] in words) == ["fired", *["stale"] * 19]
    assert len(await _ready(shard)) == 1


async def test_a_clock_that_is_ahead_fires_nothing_early(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    state = await schedules.state()
    due = DueRow("s", state.gen, state.slot, "", "", "", "")
    shard.now = schedules.first - 1
    assert await schedules.fire(_row(due)) == ["early"]
    assert await _ready(shard) == []


async def test_a_schedule_that_was_removed_and_added_again_runs_each_slot_once(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    [due] = await schedules.due()
    old = _row(due)
    assert await schedules.fire(old) == ["fired"]
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token))
    word, _ = await shard.store.schedules.change("remove", "s", seen=due.gen, now=shard.now)
    assert word == "removed"
    assert await schedules.put() == "new"
    [due] = await schedules.due()
    assert due.gen > old.gen
    assert await schedules.fire(old) == ["stale"]
    again = _row(due)
    assert again.job != old.job
    assert await schedules.fire(again) == ["joined"]
    assert await _ready(shard) == []
    shard.now = int(again.next)
    [due] = await schedules.due()
    assert await schedules.fire(_row(due)) == ["fired"]
    assert await _ready(shard) == [_row(due).job]


async def test_a_failover_that_lost_the_advance_makes_no_second_job(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    [due] = await schedules.due()
    kept = await shard.command("HGETALL", shard.key("schedule", "s"))
    assert await schedules.fire(_row(due)) == ["fired"]
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token, "failed", "{}", attempts=1))
    await shard.command("DEL", shard.key("schedule", "s"))
    await shard.command("HSET", shard.key("schedule", "s"), *kept)
    await shard.command("ZADD", shard.store.keys.shard_key("schedules"), schedules.first, "s")
    assert await schedules.fire(_row(due)) == ["fired"]
    assert await _ready(shard) == []
    assert (await schedules.state()).slot == str(schedules.first + _EVERY)


async def test_a_failover_that_lost_job_and_advance_fires_again(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    [due] = await schedules.due()
    assert await schedules.fire(_row(due)) == ["fired"]
    for kind, name in (("job", _row(due).job), ("key", f"{QUEUE}:{_row(due).key}"), ("ready", QUEUE)):
        assert await shard.command("DEL", shard.key(kind, name)) == 1
    await shard.command("HSET", shard.key("schedule", "s"), "slot", due.slot)
    await shard.command("ZADD", shard.store.keys.shard_key("schedules"), schedules.first, "s")
    assert await schedules.fire(_row(due)) == ["fired"]
    assert await _ready(shard) == [_row(due).job]


async def test_a_change_decides_a_race_with_a_firing(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    [due] = await schedules.due()
    assert await schedules.put(digest="2", slot=schedules.first + 5, due=schedules.first + 5) == "changed"
    assert await schedules.fire(_row(due)) == ["stale"]
    assert await _ready(shard) == []


async def test_the_turn_that_finds_schedules_due_has_them_for_itself_for_a_while(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    answer = await shard.turn()
    assert (answer.next_due, answer.has_duty) == (schedules.first, False)
    shard.now = schedules.first
    assert (await shard.turn()).has_duty
    assert not (await shard.turn(worker="other")).has_duty
    shard.now += 2000
    assert (await shard.turn(worker="other")).has_duty  # the first one died before it fired
    [due] = await schedules.due()
    await schedules.fire(_row(due))
    answer = await shard.turn()
    assert (answer.next_due, answer.has_duty) == (schedules.first + _EVERY, False)


async def test_overlap_skip_lets_the_slot_pass_while_the_last_job_is_open(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    words: list[str] = []
    for _ in range(2):
        shard.now += _EVERY
        [due] = await schedules.due()
        words += await schedules.fire(_row(due))
    answer = await shard.turn()  # held by a worker: still open
    shard.now += _EVERY
    [due] = await schedules.due()
    words += await schedules.fire(_row(due))
    await shard.turn(settle(answer.claims[0], answer.token))
    shard.now += _EVERY
    [due] = await schedules.due()
    words += await schedules.fire(_row(due))
    assert words == ["fired", "skipped", "skipped", "fired"]
    state = await schedules.state()
    assert (state.fired, state.skipped) == ("2", "2")


async def test_overlap_queue_holds_the_slot_until_the_last_job_has_ended(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    [due] = await schedules.due()
    await schedules.fire(_row(due, overlap="queue"))
    answer = await shard.turn()
    shard.now += _EVERY
    [due] = await schedules.due()
    assert await schedules.fire(_row(due, overlap="queue")) == ["held"]
    assert (await schedules.state()).held == due.slot
    assert await schedules.due() == []
    await shard.turn(settle(answer.claims[0], answer.token))
    shard.now += 1000
    [due] = await schedules.due()
    assert await schedules.fire(_row(due, overlap="queue")) == ["fired"]
    assert await _ready(shard) == [_row(due).job]
    assert (await schedules.state()).held == ""


async def test_overlap_cancel_cancels_the_last_job_and_allow_leaves_it(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    jobs: list[str] = []
    for overlap in ("allow", "allow", "cancel"):
        shard.now += _EVERY
        [due] = await schedules.due()
        jobs.append(_row(due).job)
        assert await schedules.fire(_row(due, overlap=overlap)) == ["fired"]
    assert [await shard.state(job) for job in jobs] == ["waiting", "cancelled", "waiting"]


async def test_a_failed_job_pauses_only_a_schedule_that_asks_for_it(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    for pauses, word in ((0, "fired"), (0, "fired"), (1, "paused")):
        shard.now += _EVERY
        [due] = await schedules.due()
        assert await schedules.fire(_row(due, pauses=pauses)) == [word]
        answer = await shard.turn()
        await shard.turn(*(settle(each, answer.token, "failed", "{}", attempts=1) for each in answer.claims))
    state = await schedules.state()
    assert (state.due, state.paused) == ("", "its last job failed")
    shard.now += _EVERY
    assert await schedules.due() == []
    word, _ = await shard.store.schedules.change(
        "resume", "s", **_seen([state]), slot=shard.now + 1, due=shard.now + 1, queue=QUEUE, now=shard.now
    )
    assert word == "resumed"
    assert (await schedules.state()).due == str(shard.now + 1)


async def test_a_limit_ends_a_schedule(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put(limit=2)
    for _ in range(2):
        shard.now += _EVERY
        [due] = await schedules.due()
        assert await schedules.fire(_row(due, overlap="allow")) == ["fired"]
    state = await schedules.state()
    assert (state.slot, state.due, state.fired) == ("", "", "2")


async def test_a_schedule_at_its_limit_stays_at_its_end_until_the_limit_is_raised(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put(limit=1)
    shard.now = schedules.first
    [due] = await schedules.due()
    assert await schedules.fire(_row(due)) == ["fired"]
    later: dict[str, Any] = {"slot": shard.now + _EVERY, "due": shard.now + _EVERY}
    assert await schedules.put(limit=1, digest="2", **later) == "changed"
    assert (await schedules.state()).due == ""
    change, seen = shard.store.schedules.change, _seen([await schedules.state()])
    await change("pause", "s", **seen, reason="no", now=shard.now)
    await change("resume", "s", **seen, queue=QUEUE, now=shard.now, **later)
    state = await schedules.state()
    assert (state.slot, state.due, state.paused) == ("", "", "")
    assert await schedules.put(limit=2, digest="3", **later) == "changed"
    assert (await schedules.state()).due == str(later["due"])


async def test_a_failed_job_pauses_a_schedule_once(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    words: list[str] = []
    for _ in range(4):
        shard.now += _EVERY
        [due] = await schedules.due()
        [word] = await schedules.fire(_row(due, pauses=1))
        words.append(word)
        if word == "paused":
            slot = shard.now + _EVERY
            await shard.store.schedules.change(
                "resume", "s", **_seen([due]), slot=slot, due=slot, queue=QUEUE, now=shard.now
            )
            continue
        answer = await shard.turn()
        await shard.turn(*(settle(each, answer.token, "failed", "{}", attempts=1) for each in answer.claims))
    assert words == ["fired", "paused", "fired", "paused"]


async def test_the_last_of_many_that_are_caught_up_waits_for_the_one_before(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first + _EVERY
    plan = Plan(event="tick", queue=QUEUE, table=Timetable(every=_EVERY), catch_up="all")

    async def fire() -> list[str]:
        return await schedules.fire(*(make_row(due, plan, shard.now) for due in await schedules.due()))

    assert [await fire(), await fire()] == [["fired"], ["held"]]
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token))
    shard.now += 1000
    assert await fire() == ["fired"]
    state = await schedules.state()
    assert (state.fired, state.skipped, state.held) == ("2", "", "")
    shard.now = int(state.due)
    assert await fire() == ["skipped"]  # that one is in time


async def test_groups_get_their_jobs_too(shard: Shard) -> None:
    await shard.announce(group="audit")
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    [due] = await schedules.due()
    assert await schedules.fire(_row(due)) == ["fired"]
    assert await _ready(shard) == [_row(due).job]
    assert await _ready(shard, f"{QUEUE}@audit") == [_row(due).job + "@audit"]


async def test_a_queue_that_cannot_be_written_keeps_the_slot(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    [due] = await schedules.due()
    await shard.command("SET", shard.key("ready", QUEUE), "mine")
    assert await schedules.fire(_row(due)) == ["foreign"]
    await shard.command("DEL", shard.key("ready", QUEUE))
    shard.now += 5000
    [due] = await schedules.due()
    assert await schedules.fire(_row(due)) == ["fired"]
    assert await _ready(shard) == [_row(due).job]


async def test_what_nobody_here_can_fire_is_put_off_and_holds_nobody_up(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put("a")
    await schedules.put("b")
    shard.now = schedules.first
    odd, plain = await schedules.due()
    assert await schedules.fire(_row(odd, wait=60_000), _row(plain)) == ["waits", "fired"]
    assert (await schedules.state("a")).due == str(shard.now + 60_000)
    assert await _ready(shard) == [_row(plain).job]


async def test_a_thousand_schedules_fire_in_bounded_calls(store: Store) -> None:
    shard = Shard(store)
    schedules = _Schedules(shard)
    count = 1000
    for first in range(0, count, 100):
        await asyncio.gather(*(schedules.put(f"s{number}") for number in range(first, first + 100)))
    shard.now, calls = schedules.first, 0
    while due := await schedules.due():
        assert len(due) <= 100
        assert set(await schedules.fire(*map(_row, due))) == {"fired"}
        calls += 1
    assert calls == count // 100
    assert len(await _ready(shard)) == count


async def test_slots_that_catch_up_follow_short_jobs_until_none_is_late(shard: Shard) -> None:
    """A schedule of a slot a second, all of whose slots of ten seconds passed while nobody worked."""
    schedules, every = _Schedules(shard), 1000
    plan = Plan(event="tick", queue=QUEUE, table=Timetable(every=every), catch_up="all")
    first = schedules.first
    await schedules.put(slot=first, due=first)
    shard.now = first + 10 * every
    late = list[int]()
    while len(late) < 30:
        while due := await schedules.due():  # as long as anything is due, as a worker does
            if await schedules.fire(make_row(due[0], plan, shard.now)) == ["fired"]:
                late.append(shard.now - int(due[0].slot))
        shard.now += 5
        answer = await shard.turn()
        await shard.turn(*(settle(each, answer.token) for each in answer.claims), want=0)
    assert late[0] == 10 * every
    assert max(late[15:]) < every / 4


async def test_a_slot_that_waits_for_a_long_job_is_asked_about_once_a_second(shard: Shard) -> None:
    schedules = _Schedules(shard)
    await schedules.put()
    shard.now = schedules.first
    (due,) = await schedules.due()
    await schedules.fire(_row(due))
    shard.now = schedules.first + _EVERY
    asked, began = 0, shard.now
    while shard.now < began + _EVERY:
        for due in await schedules.due():
            asked += 1
            assert await schedules.fire(_row(due, overlap="queue")) == ["held"]
        shard.now += 100
    assert asked == 60
