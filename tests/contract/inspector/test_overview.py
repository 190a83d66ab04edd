"""`inspector.queues.list()` and `inspector.workers.list()`: all queues with their counts, and all workers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import Event, EventProvider, Limit, Retry
from eventbus._version import __version__
from eventbus.admin.queues import PauseReport, QueueReport
from eventbus.store.connection.retrying import RetryingCaller

MakeProvider = Callable[..., EventProvider]
_READS = ("ZRANGE", "SMEMBERS", "LLEN", "ZCARD", "TIME", "active", "survey", "limits", "ended", "list")


async def _queue(provider: EventProvider, name: str) -> QueueReport:
    (found,) = [each for each in await provider.inspector.queues.list() if each.name == name]
    return found


async def test_every_queue_is_listed_with_its_counts(make_provider: MakeProvider) -> None:
    provider = make_provider()
    began, go_on = asyncio.Event(), asyncio.Event()

    @provider.on("order", retry=Retry(attempts=1), concurrency=1)
    async def handle(n: int) -> None:
        if n < 0:
            raise ValueError(n)
        if n > 0:
            began.set()
            await go_on.wait()

    provider.on("order", group="audit")(lambda n: None)
    async with provider:
        assert await provider.inspector.queues.list() == []
        await provider.emit("lonely", 1, reply=False)
        await provider.emit("soon", 1, reply=False, delay="1 hour")
        names = [each.name for each in await provider.inspector.queues.list()]
        assert names == ["event.lonely", "event.soon"], "before anybody serves them"
        async with provider.worker():
            await provider.emit("order", 0)
            with pytest.raises(Exception, match="ValueError"):
                await provider.emit("order", -1)
            for n in range(1, 4):
                await provider.emit("order", n, reply=False)
            await asyncio.wait_for(began.wait(), 240)
            order = await _queue(provider, "event.order")
            counted = (order.completed, order.failed, order.active, order.workers)
            assert counted == (1, 1, 1, 1)
            assert (order.event, order.group, order.waiting) == ("order", None, 2)
            assert order.oldest is not None
            assert 0 <= order.oldest < 60
            audit = await _queue(provider, "event.order@audit")
            assert (audit.event, audit.group, audit.workers) == ("order", "audit", 1)
            assert [each.name for each in await provider.inspector.queues.list("order@audit")] == [audit.name]
            go_on.set()
        soon = await _queue(provider, "event.soon")
        assert (soon.delayed, soon.waiting, soon.oldest, soon.workers) == (1, 0, None, 0)


async def test_a_queue_says_who_paused_it_and_what_limits_it(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        await provider.pause("order", reason="audit", by="ann")
        await provider.set_limit("bill", Limit(at_once=3))
        bill, order = await provider.inspector.queues.list()
        assert order.paused is not None
        assert order.paused == PauseReport(since_ms=order.paused.since_ms, by="ann", reason="audit")
        assert (order.limited, order.limit, bill.paused) == (False, None, None)
        assert bill.limited
        assert bill.limit is not None
        assert bill.limit.at_once == 3


async def test_one_queue_is_looked_at_by_its_event_also_where_nobody_knows_it(
    make_provider: MakeProvider,
) -> None:
    async with make_provider() as provider:
        found = await provider.inspector.queues.list(Event("none"))
        assert found == [QueueReport(name="event.none", event="none")]


async def test_every_worker_is_listed_until_it_ends(make_provider: MakeProvider) -> None:
    provider, other = make_provider(name="shop", max_concurrency=7), make_provider(name="bank")
    began, go_on = asyncio.Event(), asyncio.Event()

    @provider.on("order")
    async def handle(_: Any) -> None:
        began.set()
        await go_on.wait()

    other.on("bill")(lambda n: None)
    async with provider, other:
        assert await provider.inspector.workers.list() == []
        async with provider.worker() as worker, other.worker():
            await provider.emit("order", 1, reply=False)
            await asyncio.wait_for(began.wait(), 240)
            bank, shop = await provider.inspector.workers.list()
            assert (bank.name, bank.queues, bank.running) == ("bank", ["event.bill"], 0)
            process = (shop.host, shop.pid, shop.version)
            assert process == (socket.gethostname(), os.getpid(), __version__)
            assert (shop.id, shop.name, shop.queues) == (worker.id, "shop", ["event.order"])
            assert (shop.running, shop.concurrency) == (1, 7)
            assert 0 < shop.started_ms <= shop.heard_ms
            go_on.set()
        assert await provider.inspector.workers.list() == []


async def test_a_look_at_all_queues_costs_as_many_calls_with_many_jobs_as_with_few(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    script, command = RetryingCaller.script, RetryingCaller.command

    async def note_script(self: RetryingCaller, name: str, *given: Any, **options: Any) -> Any:
        calls.append(name)
        return await script(self, name, *given, **options)

    async def note_command(self: RetryingCaller, *given: Any, **options: Any) -> Any:
        calls.append(str(given[0]))
        return await command(self, *given, **options)

    async with make_provider() as provider:
        seen: list[list[str]] = []
        for count in (1, 2_000):
            emissions = provider.emit_many("order", range(count), reply=False)
            await asyncio.gather(*(each.enqueued() for each in emissions))
            emissions = provider.emit_many("order", range(count), delay="1 hour", reply=False)
            await asyncio.gather(*(each.enqueued() for each in emissions))
            with monkeypatch.context() as patch:
                patch.setattr(RetryingCaller, "script", note_script)
                patch.setattr(RetryingCaller, "command", note_command)
                (order,) = await provider.inspector.queues.list()
                await provider.inspector.queues.count(
                    "order", states=["waiting", "delayed", "failed", "completed"]
                )
                await provider.inspector.jobs.list("order", state="delayed")
            assert (order.waiting, order.delayed) == (1 + (count > 1) * count, 1 + (count > 1) * count)
            seen.append([each for each in calls if each in _READS])
            calls.clear()
        assert seen[0] == seen[1]


async def test_a_call_is_about_50_queues_and_holds_nobody_up(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each queue did lately is read with the rest. More queues in a call would be seen in the p99 of
    emissions.
    """
    calls: list[str] = []
    script = RetryingCaller.script

    async def note(self: RetryingCaller, name: str, *given: Any, **options: Any) -> Any:
        calls.append(name)
        return await script(self, name, *given, **options)

    async with make_provider() as provider:
        seen: list[Counter[str]] = []
        for names in (range(1), range(1, 200)):
            for n in names:
                await provider.emit(f"order.{n}", n, reply=False)
            with monkeypatch.context() as patch:
                patch.setattr(RetryingCaller, "script", note)
                assert len(await provider.inspector.queues.list()) == names[-1] + 1
            seen.append(Counter(name for name in calls if name in _READS))
            calls.clear()
    assert seen == [
        {"active": 1, "ended": 1, "limits": 1, "survey": 1},
        {"active": 1, "ended": 4, "limits": 4, "survey": 1},
    ]
