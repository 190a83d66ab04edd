"""Jobs that may kill their process, and must be alone: a worker runs one of them at a time, and starts
nothing beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.records import make_suspect

from eventbus import EventContext, EventProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_suspects_run_one_after_the_other_and_nothing_starts_beside_them(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, until: Until
) -> None:
    provider = make_provider(concurrency=100)
    suspects: set[str] = set()
    running: set[str] = set()
    together: list[set[str]] = []
    others: list[str] = []
    beside: set[str] = set()
    """Suspects beside which another job started."""

    @provider.on("work")
    async def work(n: int, ctx: EventContext) -> int:
        running.add(ctx.job_id)
        together.append(suspects & running)
        if ctx.job_id in suspects:
            await asyncio.sleep(0.005)  # the handler's work, longer than a claim takes
        else:
            others.append(ctx.job_id)
            beside.update(suspects & running)
        running.discard(ctx.job_id)
        return n

    async with provider:
        emissions = provider.emit_many("work", range(60))
        await asyncio.gather(*(each.enqueued() for each in emissions))
        for each in emissions[::2]:
            suspects.add(each.job_id)
            admin(*make_suspect(f"{prefix}:2:{{0}}:job:{each.job_id}", "event.work"))
        async with provider.worker():
            assert [await each for each in emissions] == list(range(60))
    assert max(len(each) for each in together) == 1
    assert len(others) == 30
    assert beside == set()


async def test_a_suspect_is_found_among_more_queues_than_one_call_asks(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    """Two calls at the same time ask them, and only one of the two may claim a suspect."""
    provider = make_provider(concurrency=100)
    events = [f"work{n}" for n in range(128)]

    def define(event: str) -> None:
        @provider.on(event)
        async def work(n: int) -> int:
            return n

    for event in events:
        define(event)
    async with provider:
        emissions = [provider.emit(each, 1) for each in (events[10], events[100])]
        await asyncio.gather(*(each.enqueued() for each in emissions))
        for each, event in zip(emissions, (events[10], events[100]), strict=True):
            admin(*make_suspect(f"{prefix}:2:{{0}}:job:{each.job_id}", f"event.{event}"))
        async with asyncio.timeout(240), provider.worker():
            assert [await each for each in emissions] == [1, 1]
