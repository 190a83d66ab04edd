"""A year with its changes of the clock, in six zones: four workers fire, and one of them is broken off at
each firing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from drivers.shards import QUEUE, Shard

from eventbus.schedules.plan import Plan
from eventbus.schedules.runner import ScheduleRunner
from eventbus.schedules.timetable import Timetable
from eventbus.schedules.zone import to_ms
from eventbus.store.store import Store

_BEGIN, _END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
_QUARTER = timedelta(minutes=15)  # all offsets, all changes and all slots here are whole quarters
_DAILY = {
    "berlin": "Europe/Berlin",
    "new-york": "America/New_York",
    "lord-howe": "Australia/Lord_Howe",
    "santiago": "America/Santiago",
    "casablanca": "Africa/Casablanca",
    "kathmandu": "Asia/Kathmandu",
}
_HALF_HOURS = "*/30 1-3 * * sun"  # goes by real time


def _walls(zone: ZoneInfo) -> Iterator[tuple[int, datetime, datetime]]:
    """Each quarter of an hour of the year, in ms, with its wall time and that of the one before."""
    when = _BEGIN
    before = (when - _QUARTER).astimezone(zone).replace(tzinfo=None)
    while when < _END:
        wall = when.astimezone(zone).replace(tzinfo=None)
        yield to_ms(when), wall, before
        when, before = when + _QUARTER, wall


def _days_at_half_past_two(zone: ZoneInfo) -> list[int]:
    """By brute force: when each day comes to 02:30 or past it for the first time."""
    slots, done = list[int](), set[object]()
    for ms, wall, before in _walls(zone):
        time = wall.replace(hour=2, minute=30)
        if wall.date() not in done and wall >= time and (before < time or wall == time):
            done.add(wall.date())
            slots.append(ms)
    return slots


def _half_hours(zone: ZoneInfo) -> list[int]:
    return [
        ms
        for ms, wall, _ in _walls(zone)
        if wall.weekday() == 6 and wall.hour in (1, 2, 3) and wall.minute in (0, 30)
    ]


async def _put(shard: Shard, name: str, cron: str, zone: str) -> None:
    table = Timetable(cron=cron, tz=zone, end=to_ms(_END) - 1)
    slot = table.next_after(shard.now)
    assert slot is not None
    plan = Plan(event="tick", queue=QUEUE, table=table, overlap="allow").encode()
    await shard.store.schedules.change(
        "put", name, seen="", slot=slot, due=slot, plan=plan, digest="1", queue=QUEUE, now=shard.now
    )


async def _fire(runners: list[ScheduleRunner], now: int, rng: random.Random) -> None:
    """All fire at once; one of them is broken off somewhere. What it left, the others do."""
    tasks = [asyncio.create_task(runner.fire_all(now_ms=now)) for runner in runners]
    for _ in range(rng.randrange(12)):
        await asyncio.sleep(0)
    tasks[rng.randrange(4)].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    others = [each for each in found if isinstance(each, BaseException)]
    assert all(isinstance(each, asyncio.CancelledError) for each in others), others


@pytest.mark.slow
async def test_each_slot_of_a_year_fires_once_whatever_the_clock_and_the_workers_do(store: Store) -> None:
    shard, rng = Shard(store), random.Random(26)
    shard.now = to_ms(_BEGIN) - 1
    expected: dict[str, list[int]] = {}
    for name, zone in _DAILY.items():
        await _put(shard, name, "30 2 * * *", zone)
        expected[name] = _days_at_half_past_two(ZoneInfo(zone))
    for name in ("berlin", "lord-howe"):
        await _put(shard, f"{name}-halves", _HALF_HOURS, _DAILY[name])
        expected[f"{name}-halves"] = _half_hours(ZoneInfo(_DAILY[name]))
    runners = [ScheduleRunner(store, key_ttl=86_400.0) for _ in range(4)]
    while (answer := await store.schedules.fire([], key_ttl_ms=1, now=shard.now)).first > 0:
        shard.now = answer.first
        await _fire(runners, shard.now, rng)
    fired: dict[str, list[int]] = {}
    for job in await shard.command("LRANGE", shard.key("ready", QUEUE), 0, -1):
        name, _, rest = job.partition("~")
        fired.setdefault(name, []).append(int(rest.partition(".")[2]))
    assert {name: sorted(slots) for name, slots in fired.items()} == expected
    assert [len(expected[name]) for name in _DAILY] == [365] * 6
