"""Changes of schedules that meet a firing, a lost answer or another program."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from eventbus import Event, EventProvider
from eventbus.errors import DefinitionError, UsageError
from eventbus.schedules.runner import ScheduleRunner
from eventbus.store.calls.schedule_store import SchedulePage
from eventbus.store.store import Store

pytestmark = pytest.mark.virtual

_TICK = Event("tick", payload=int)


def _store_of(provider: EventProvider) -> Store:
    return provider.schedules._store  # pyright: ignore[reportPrivateUsage]


async def test_a_change_that_meets_a_firing_keeps_the_slot_behind_it(
    provider: EventProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provider:
        add = partial(provider.schedules.add, _TICK, id="s", every="1 hour", limit=2, overlap="allow")
        schedule = await add(payload=1, immediately=True)
        first = (await schedule.report()).next
        store, looked = _store_of(provider), list[SchedulePage]()
        look = store.schedules.look

        async def look_before_it_fires(*given: Any, **options: Any) -> SchedulePage:
            looked.append(await look(*given, **options))
            if len(looked) == 1:
                assert await ScheduleRunner(store, key_ttl=1.0).fire_all() == 1
            return looked[-1]

        monkeypatch.setattr(store.schedules, "look", look_before_it_fires)
        await add(payload=2)
        assert await ScheduleRunner(store, key_ttl=1.0).fire_all() == 0
        report = await schedule.report()
        assert (report.next, report.last, report.fired) == (first + 3_600_000, first, 1)


async def test_a_removal_whose_answer_was_lost_has_removed_it(
    provider: EventProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provider:
        store = _store_of(provider).schedules
        change, words = store.change, list[str]()

        async def change_again(
            *given: Any, **options: Any
        ) -> tuple[str, str]:  # as a caller that hears nothing
            words.append((await change(*given, **options))[0])
            words.append((await change(*given, **options))[0])
            return words[-1], ""

        for name in ("a", "b"):
            await provider.schedules.add(_TICK, id=name, every="1 hour", payload=1)
        monkeypatch.setattr(store, "change", change_again)
        assert await provider.schedules.remove("a")
        await provider.schedules.get("b").remove()
        assert words == ["removed", "unknown"] * 2
        assert not await provider.schedules.remove("a")
        with pytest.raises(UsageError, match="'b'"):
            await provider.schedules.get("b").remove()


_PAST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"start": datetime(2126, 1, 1, tzinfo=UTC)}, "immediately=True without start"),
        ({"start": _PAST}, "immediately=True without start"),
        ({"end": _PAST}, "2026-01-01"),
    ],
)
@pytest.mark.parametrize("table", [{"every": "1 hour"}, {"cron": "@hourly"}])
async def test_what_cannot_fire_immediately_is_refused(
    provider: EventProvider, table: Any, options: Any, text: str
) -> None:
    async with provider:
        with pytest.raises(DefinitionError, match=text):
            await provider.schedules.add(_TICK, id="s", payload=1, immediately=True, **table, **options)
        assert await provider.schedules.list() == []


async def test_a_program_whose_declared_schedule_is_over_starts_all_the_same(provider: EventProvider) -> None:
    provider.on(_TICK)(_ignore)
    provider.schedules.every("1 hour", _TICK, id="s", payload=1, immediately=True, end=_PAST)
    async with provider, provider.worker():
        [report] = await provider.schedules.list()
        assert (report.next, report.fired) == (0, 0)


async def _ignore(number: int) -> None: ...


async def test_a_pause_and_a_resume_bring_back_what_a_clock_that_was_ahead_has_moved(
    provider: EventProvider,
) -> None:
    async with provider:
        schedule = await provider.schedules.add(_TICK, id="s", every="1 hour", payload=1)
        before = (await schedule.report()).next
        runner = ScheduleRunner(_store_of(provider), key_ttl=1.0)
        assert await runner.fire_all(now_ms=before + 8_760 * 3_600_000) == 1  # a year ahead
        assert (await schedule.report()).next > before + 8_759 * 3_600_000
        await schedule.pause()
        await schedule.resume()
        assert (await schedule.report()).next == before
