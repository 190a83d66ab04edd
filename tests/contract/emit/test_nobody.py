"""Emissions of an event that has no default handler and no group: nothing is enqueued, which is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from eventbus import Event, EventProvider, NoWorker, UnknownJob

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Logs = list[MutableMapping[str, Any]]

told = Event("told", payload=int, default=False)


def _warned(logs: Logs) -> list[str]:
    said = "emitted to nobody: the event has no default handler and no group"
    return [each["event_name"] for each in logs if each["event"] == said]


async def test_an_emission_to_nobody_is_told_once_and_says_that_it_made_no_job(
    make_provider: MakeProvider, logs: Logs
) -> None:
    provider = make_provider()
    heard: list[int] = []

    @provider.on(told, group="audit")
    async def audit(number: int) -> None:
        heard.append(number)

    async with provider:
        lost = [provider.emit(told, n) for n in range(3)]
        assert lost[0].groups is None
        await asyncio.gather(*lost)
        assert [each.groups for each in lost] == [0, 0, 0]
        assert _warned(logs) == ["told"]
        with pytest.raises(UnknownJob, match="had no default handler and no group when it was emitted"):
            await provider.result(lost[0].job_id)
        assert await lost[0].cancel() is False
        with pytest.raises(NoWorker, match="no worker serves told, and require_worker is set") as caught:
            await provider.emit(told, 4, require_worker=True)
        assert (caught.value.enqueued, caught.value.queue) == (False, "event.told")
        async with provider.worker():
            taken = provider.emit(told, 5, require_worker=True)
            await taken
            assert taken.groups == 1
            while not heard:  # noqa: ASYNC110  (the handler runs in its own time)
                await asyncio.sleep(0.002)
        await provider.remove_group(told, "audit")
        await provider.emit(told, 6)
    assert heard == [5]
    assert _warned(logs) == ["told", "told"], "again once it had a group in between"


async def test_an_emission_says_how_many_jobs_it_made(make_provider: MakeProvider) -> None:
    provider = make_provider()
    both = Event("both", payload=int)
    provider.on(both)(lambda number: number)
    provider.on(both, group="audit")(lambda number: None)
    async with provider, provider.worker():
        emission = provider.emit(both, 1, idempotency_key="k")
        await emission
        assert emission.groups == 2
        again = provider.emit(both, 1, idempotency_key="k")
        await again
        assert (again.joined, again.groups) == (True, None)
