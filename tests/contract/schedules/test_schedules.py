"""Schedules of a provider: declared, added at run time, changed, fired by workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from drivers.counting import count_lines

from eventbus import Event, EventContext, EventProvider
from eventbus.errors import DefinitionError, PayloadError, UsageError
from eventbus.schedules.plan import Plan
from eventbus.schedules.runner import ScheduleRunner
from eventbus.schedules.timetable import Timetable
from eventbus.store.calls.schedule_store import SchedulePage, ScheduleStore

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

_TICK = Event("tick", payload=int)


def _collect(provider: EventProvider) -> asyncio.Queue[tuple[int, Any]]:
    got: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

    @provider.on(_TICK)
    async def tick(number: int, ctx: EventContext) -> None:
        got.put_nowait((number, ctx.meta.get("slot")))

    return got


async def test_a_declared_schedule_fires_each_slot_once_with_two_workers(make_provider: MakeProvider) -> None:
    first, second = make_provider(), make_provider()
    queues = [_collect(provider) for provider in (first, second)]
    for provider in (first, second):
        provider.schedules.every("0.2s", _TICK, id="sweep", payload=7, immediately=True)
    async with first, second, first.worker(), second.worker():
        reads = [asyncio.create_task(queue.get()) for queue in queues]
        await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(1.0)
        [report] = await first.schedules.list()
        assert await first.schedules.remove("sweep")
    slots = [read.result() for read in reads if read.done()]
    for read in reads:
        read.cancel()
    for queue in queues:
        while not queue.empty():
            slots.append(queue.get_nowait())
    numbers = sorted(slot for _, slot in slots)
    assert {number for number, _ in slots} == {7}
    assert len(set(numbers)) == len(numbers) >= report.fired >= 3
    assert {(number - numbers[0]) % 200 for number in numbers} == {0}
    assert (report.event, report.every_ms, report.owner) == ("tick", 200, first.settings.name)


async def test_a_schedule_added_at_run_time_fires_though_its_adder_has_no_worker(
    make_provider: MakeProvider,
) -> None:
    client, server = make_provider(), make_provider()
    got = _collect(server)
    async with client, server, server.worker():
        schedule = await client.schedules.add("tick", id="rt", every="0.2s", payload=1)
        async with asyncio.timeout(240):
            assert (await got.get())[0] == 1
            await schedule.pause("audit")
            report = await schedule.report()
            assert (report.paused, report.next) == ("audit", 0)
            await schedule.resume()
            while not got.empty():
                got.get_nowait()
            await got.get()
        assert (await schedule.report()).paused == ""
        await schedule.remove()
        with pytest.raises(UsageError, match="'rt'"):
            await schedule.report()


async def test_the_same_declaration_changes_nothing_and_another_one_keeps_the_slot(
    provider: EventProvider,
) -> None:
    async with provider:
        schedules = provider.schedules
        schedule = await schedules.add(_TICK, id="s", every="1 hour", payload=1)
        before = await schedule.report()
        await schedules.add(_TICK, id="s", every="1 hour", payload=1)
        assert await schedule.report() == before
        await schedules.add(_TICK, id="s", every="1 hour", payload=2, overlap="allow")
        after = await schedule.report()
        assert (after.next, after.overlap) == (before.next, "allow")
        await schedules.add(_TICK, id="s", every="2 hours", payload=2)
        assert (await schedule.report()).next > before.next
        assert await schedules.remove("s")
        assert not await schedules.remove("s")


async def test_many_who_make_one_schedule_at_once_make_one(provider: EventProvider) -> None:
    async with provider:
        adds = (provider.schedules.add(_TICK, id="s", every="1 hour", payload=n % 3) for n in range(30))
        await asyncio.gather(*adds)
        assert [schedule.id async for schedule in provider.schedules] == ["s"]
        await provider.schedules.remove("s")


async def test_backfill_makes_a_job_for_each_slot_once(provider: EventProvider) -> None:
    got = _collect(provider)
    async with provider, provider.worker():
        schedule = await provider.schedules.add(_TICK, id="s", cron="0 * * * *", payload=3)
        since = datetime(2026, 3, 1, 0, 0, tzinfo=UTC)
        jobs = await schedule.backfill(since, since + timedelta(hours=3))
        assert jobs == await schedule.backfill(since, since + timedelta(hours=3))
        slots = [await got.get() for _ in range(4)]
        assert sorted(slot for _, slot in slots) == [
            int((since + timedelta(hours=hour)).timestamp() * 1000) for hour in range(4)
        ]
        job = await schedule.run_now()
        await got.get()
        assert got.empty()
        assert job not in jobs
        with pytest.raises(DefinitionError, match="1000 slots"):
            await schedule.backfill(since, since + timedelta(days=300))
        await schedule.remove()


async def test_the_old_name_of_run_now_warns_and_does_the_same(provider: EventProvider) -> None:
    got = _collect(provider)
    async with provider, provider.worker():
        schedule = await provider.schedules.add(_TICK, id="s", cron="0 * * * *", payload=3)
        with pytest.warns(
            DeprecationWarning, match=r"schedule\.trigger is deprecated: use schedule\.run_now"
        ):
            job = await schedule.trigger()
        assert job.startswith("s~")
        await got.get()
        await schedule.remove()


async def test_next_tells_the_slots_in_the_zone_of_the_schedule(provider: EventProvider) -> None:
    async with provider:
        schedule = await provider.schedules.add(
            _TICK, id="s", cron="0 9 * * *", tz="Asia/Kathmandu", payload=1
        )
        slots = await schedule.next(3)
        assert [slot.strftime("%H:%M %z") for slot in slots] == ["09:00 +0545"] * 3
        await schedule.remove()


async def test_a_declared_schedule_goes_with_a_newer_release_that_lacks_it(
    make_provider: MakeProvider,
) -> None:
    older, newer = make_provider(name="app"), make_provider(name="app")
    for provider in (older, newer):
        _collect(provider)
        provider.schedules.every("1 hour", _TICK, id="kept", payload=1)
    older.schedules.every("1 hour", _TICK, id="gone", payload=1)
    older.schedules.version, newer.schedules.version = 1, 2
    async with older, newer:
        await older.schedules.add(_TICK, id="by-hand", every="1 hour", payload=1)
        async with older.worker():
            assert {each.id for each in await older.schedules.list()} == {"kept", "gone", "by-hand"}
        async with newer.worker():
            assert {each.id for each in await newer.schedules.list()} == {"kept", "by-hand"}
        async with older.worker():  # one that was still to start
            assert {each.id for each in await older.schedules.list()} == {"kept", "by-hand"}
        for name in ("kept", "by-hand"):
            await newer.schedules.remove(name)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "neither"),
        ({"cron": "61 * * * *"}, "61"),
        ({"cron": "0 0 30 2 *"}, "30 2"),
        ({"every": "50ms"}, "every"),
        ({"cron": "@daily", "tz": "Europe/Atlantis"}, "Atlantis"),
        ({"cron": "@daily", "overlap": "maybe"}, "overlap"),
        ({"cron": "@daily", "colour": 1}, "colour"),
        ({"cron": "@daily", "start": datetime(2026, 1, 1)}, "timezone"),
    ],
)
async def test_what_could_not_fire_is_refused_before_it_is_stored(
    provider: EventProvider, options: Any, text: str
) -> None:
    async with provider:
        with pytest.raises(DefinitionError, match=text):
            await provider.schedules.add(_TICK, id="s", payload=1, **options)
        with pytest.raises(DefinitionError, match="expected id"):
            await provider.schedules.add(_TICK, id="a b", cron="@daily", payload=1)
        with pytest.raises(PayloadError):
            await provider.schedules.add(_TICK, id="s", cron="@daily", payload="text")
        assert await provider.schedules.list() == []


def test_one_id_is_declared_once(provider: EventProvider) -> None:
    provider.schedules.cron("@daily", _TICK, id="s", payload=1)
    with pytest.raises(DefinitionError, match="twice"):
        provider.schedules.every("1h", _TICK, id="s", payload=1)


async def test_schedules_that_fire_meanwhile_are_all_listed_and_each_once(
    provider: EventProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provider:
        ids = {f"s{number:02}" for number in range(30)}
        for schedule in sorted(ids):
            await provider.schedules.add(_TICK, id=schedule, every="1 hour", payload=1)
        store = _store_of(provider)
        look = store.look

        async def look_at_few(schedule: str = "", *, first: int = 0, **given: Any) -> SchedulePage:
            page = await look(schedule, first=first, **{**given, "limit": 10})
            if not schedule and first < 20:  # those that come first fire, and stand behind all others
                for row in page.rows[:5]:
                    await provider.schedules.get(row.id).pause()
            return page

        monkeypatch.setattr(store, "look", look_at_few)
        listed = [report.id for report in await provider.schedules.list()]
        assert sorted(listed) == sorted(ids)


async def test_what_a_newer_release_wrote_is_listed_and_can_be_removed(provider: EventProvider) -> None:
    async with provider:
        await provider.schedules.add(_TICK, id="plain", every="1 hour", payload=1)
        store = _store_of(provider)
        plan = '{"event":"tick","queue":"event.tick","table":{"moon":"full"},"overlap":"ask"}'
        await store.change("put", "newer", seen="", slot=1, due=2**50, plan=plan, digest="d")
        found = {report.id: report for report in await provider.schedules.list()}
        assert set(found) == {"plain", "newer"}
        assert "newer" in found["newer"].unreadable
        with pytest.raises(UsageError, match="newer"):
            await provider.schedules.get("newer").run_now()
        await provider.schedules.get("newer").pause()
        with pytest.raises(UsageError, match="newer"):
            await provider.schedules.get("newer").resume()
        assert await provider.schedules.remove("newer")


async def test_two_who_trigger_at_once_make_two_jobs(make_provider: MakeProvider) -> None:
    first, second = make_provider(), make_provider()
    async with first, second:
        await first.schedules.add(_TICK, id="s", every="1 hour", payload=1)
        jobs: set[str] = set()
        for _ in range(50):
            jobs |= set(
                await asyncio.gather(*(each.schedules.get("s").run_now() for each in (first, second)))
            )
        assert len(jobs) == 100


async def test_a_declared_schedule_is_changed_by_hand_until_its_program_starts_again(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(name="app")
    _collect(provider)
    provider.schedules.every("1 hour", _TICK, id="s", payload=1)
    provider.schedules.version = 3
    async with provider:
        async with provider.worker():
            schedule = await provider.schedules.add(_TICK, id="s", every="2 hours", payload=1)
            report = await schedule.report()
            assert (report.every_ms, report.owner) == (7_200_000, provider.settings.name)
        async with provider.worker():
            assert (await schedule.report()).every_ms == 3_600_000


async def test_a_version_of_schedules_needs_a_provider_with_a_name(provider: EventProvider) -> None:
    _collect(provider)
    provider.schedules.version = 3
    async with provider:
        with pytest.raises(UsageError, match=r"schedules.version is 3, but the provider has no name"):
            async with provider.worker():
                pass


async def test_a_worker_of_an_older_release_says_that_a_newer_one_decides(
    make_provider: MakeProvider,
) -> None:
    older, newer = make_provider(name="app"), make_provider(name="app")
    for version, each in enumerate((older, newer), start=1):
        _collect(each)
        each.schedules.every(f"{version} hours", _TICK, id="s", payload=1)
        each.schedules.version = version
    async with older, newer:
        async with newer.worker():
            pass
        with structlog.testing.capture_logs() as logs:
            async with older.worker():
                assert [each.every_ms for each in await older.schedules.list()] == [7_200_000]
    assert ("schedule left as a newer release declares it", "s") in [
        (each["event"], each.get("schedule")) for each in logs
    ]


@pytest.mark.real
async def test_a_worker_does_other_things_while_it_calculates_what_was_missed(
    provider: EventProvider,
) -> None:
    async with provider:
        store = provider.schedules._store  # pyright: ignore[reportPrivateUsage]
        day, now = 86_400_000, int(time.time() * 1000)
        plan = Plan(event="tick", queue="event.tick", table=Timetable(cron="* * * * *")).encode()
        for number in range(8):
            await store.schedules.change(
                "put", f"s{number}", seen="", slot=now - day, due=now - day, plan=plan, digest="d"
            )
        rounds: list[int] = []

        async def watch() -> None:
            seen = 0
            while True:
                await asyncio.sleep(0)
                rounds.append(lines.count - seen)
                seen = lines.count

        with count_lines() as lines:
            watcher = asyncio.create_task(watch())
            assert await ScheduleRunner(store, key_ttl=1.0).fire_all() == 8
            watcher.cancel()
        work = sum(each for each in rounds if each > 1000)  # the others wait for the server
        assert max(rounds) < work / 4, "in one piece it would be nearly all of it"


def _store_of(provider: EventProvider) -> ScheduleStore:
    return provider.schedules._store.schedules  # pyright: ignore[reportPrivateUsage]
