"""Work for which no wake came: a worker finds it in time, even if it always has other work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider
from eventbus.engine.wake_listener import LONGEST, WakeListener

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


async def test_a_worker_with_a_backlog_finds_a_queue_whose_wake_was_lost(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider(concurrency=2, max_concurrency=2)
    busy = True

    @provider.on("busy")
    async def work(n: int) -> None:
        await asyncio.sleep(0.1)  # the handler's work
        if busy:
            provider.emit("busy", n, reply=False)

    @provider.on("quiet")
    async def answer(n: int) -> int:
        return n

    async with provider, provider.worker():
        for each in provider.emit_many("busy", range(100), reply=False):
            await each.enqueued()
        admin("DEL", f"{prefix}:2:{{0}}:pools:event.quiet")  # as if the woken worker had died
        emission = provider.emit("quiet", 1, reply_timeout=None)
        began = asyncio.get_running_loop().time()
        try:
            assert await asyncio.wait_for(emission, 3 * LONGEST) == 1
        finally:
            busy = False
        assert asyncio.get_running_loop().time() - began > 0.5  # it was lost indeed


class Busy:
    """A claimer that always has work, and the reader of its messages."""

    def __init__(self, *messages: str) -> None:
        self.executor = self
        self.cancelled: list[str] = []
        self._messages = list(messages)

    async def wait_quiet(self) -> bool:
        return False

    def cancel(self, claims: list[tuple[str, str]]) -> None:
        self.cancelled += [job for job, _ in claims]

    def ask_cancelled(self, job: str, cancel: Callable[[list[tuple[str, str]]], None]) -> None:
        cancel([(job, "w:1")])

    async def poll(self) -> tuple[str, str] | None:
        return ("control", self._messages.pop(0)) if self._messages else None


async def test_a_busy_worker_hears_all_its_messages_at_one_look() -> None:
    claimer: Any = Busy("cancel:a", "pool", "cancel:b", "cancel:c")
    store: Any = None
    await WakeListener(store, claimer, worker="w").run_once(claimer)
    assert claimer.cancelled == ["a", "b", "c"]
