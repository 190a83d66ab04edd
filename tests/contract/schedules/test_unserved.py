"""A schedule whose event nobody handles: the worker says so at its start, and each look at it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_a_schedule_that_nobody_handles_says_so_in_the_log_and_in_each_report(
    make_provider: MakeProvider, until: Until, logs: list[MutableMapping[str, Any]]
) -> None:
    provider = make_provider()
    provider.on("handled")(lambda _: None)
    provider.on("grouped", group="audit")(lambda _: None)
    for event in ("handled", "grouped", "forgotten"):
        provider.schedules.every("0.1s", event, id=event, immediately=True)
    async with provider, provider.worker():
        warned = [each for each in logs if each["event"] == "schedule that nobody handles"]
        assert [(each["schedule"], each["queue"]) for each in warned] == [("forgotten", "event.forgotten")]
        forgotten = provider.schedules.get("forgotten")
        report = await forgotten.report()
        while not report.skipped:
            await asyncio.sleep(0.02)
            report = await forgotten.report()
        found = {each.id: each for each in await provider.schedules.list()}
        assert {name: each.workers for name, each in found.items()} == {
            "handled": 1,
            "grouped": 1,
            "forgotten": 0,
        }
        assert found["forgotten"].skipped_for == (
            "the job of the slot before was open (overlap=skip), and no worker serves event.forgotten now"
        )
        for name in found:
            await provider.schedules.remove(name)
