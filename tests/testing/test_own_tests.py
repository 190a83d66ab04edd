"""The mark `virtual` of our own tests (drivers/virtual.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from eventbus import EventContext, EventProvider, StoreUnavailable, SyncContext
from eventbus.testing.virtual_time import VirtualTime

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


def _is_virtual() -> bool:
    """Whether the running loop has virtual time."""
    return isinstance(getattr(asyncio.get_running_loop().create_task, "__self__", None), VirtualTime)


async def test_a_test_of_a_module_with_the_mark_runs_in_virtual_time(test_url: str) -> None:
    assert _is_virtual()
    assert test_url.startswith("virtual:")


@pytest.mark.real
async def test_one_with_the_mark_real_does_not(test_url: str) -> None:
    assert not _is_virtual()
    assert test_url.startswith("unix:")


def test_one_without_an_event_loop_does_not(test_url: str) -> None:
    assert test_url.startswith("unix:")


async def test_a_thread_hears_what_it_awaits_though_time_stands(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("outer")
    def outer(n: int, ctx: SyncContext) -> int:
        return 1 + ctx.emit("inner", n).result()

    @provider.on("inner")
    async def inner(n: int, ctx: EventContext) -> int:
        await ctx.progress(50)
        return 10 * n

    async with provider.worker():
        assert await provider.emit("outer", 2) == 21


async def test_a_server_that_stands_still_answers_when_it_goes_on(
    make_provider: MakeProvider, standstill: Callable[[], AbstractContextManager[None]]
) -> None:
    async with make_provider() as provider:
        with standstill():
            call = asyncio.create_task(provider.inspector.queues.count("ask"))
            await asyncio.sleep(1)
            assert not call.done()
        assert (await call)["waiting"] == 0


async def test_a_server_that_is_away_is_told_and_has_all_when_it_comes_back(
    make_provider: MakeProvider, virtual: Any
) -> None:
    async with make_provider() as provider:
        await provider.emit("ask", 1, reply=False)
        virtual.take_server_away()
        with pytest.raises(StoreUnavailable):
            await provider.inspector.within(1).queues.count("ask")
        virtual.bring_server_back()
        assert (await provider.inspector.queues.count("ask"))["waiting"] == 1
