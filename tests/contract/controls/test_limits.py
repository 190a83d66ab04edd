"""Limits over the fleet, through the public API: several workers, one limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from eventbus import DefinitionError, Event, EventProvider, Limit, PayloadError

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Meter:
    """Counts how many handlers run at once, in all workers of a test."""

    def __init__(self) -> None:
        self.running = self.most = self.done = 0

    async def run(self, n: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        self.running -= 1
        self.done += 1
        return n


def _workers(make_provider: MakeProvider, event: Event[int, int] | str, meter: Meter) -> list[EventProvider]:
    providers = [make_provider(concurrency=10) for _ in range(3)]
    for provider in providers:
        provider.on(event)(meter.run)
    return providers


async def test_the_fleet_runs_no_more_at_once_than_the_event_says(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    event = Event("placed", payload=int, result=int, limit=Limit(at_once=4))
    meter = Meter()
    first, *others = _workers(make_provider, event, meter)
    for provider in (first, *others):
        await stack.enter_async_context(provider.worker())
    answers = [await each for each in first.emit_many(event, range(200))]
    assert (answers, meter.most) == (list(range(200)), 4)
    (found,) = await first.inspector.queues.controls()
    assert (found.queue, found.limit, found.is_set) == ("event.placed", Limit(at_once=4), False)


async def test_a_limit_is_changed_while_the_fleet_runs(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    meter = Meter()
    first, *others = _workers(make_provider, "placed", meter)
    for provider in (first, *others):
        await stack.enter_async_context(provider.worker())
    await first.set_limit("placed", Limit(at_once=2))
    assert len([await each for each in first.emit_many("placed", range(60))]) == 60
    assert meter.most == 2
    await first.set_limit("placed", Limit(at_once=7))
    assert len([await each for each in first.emit_many("placed", range(100))]) == 100
    assert 2 < meter.most <= 7
    (found,) = await first.inspector.queues.controls()
    assert (found.limit, found.is_set, found.waiting) == (Limit(at_once=7), True, 0)
    await first.set_limit("placed", None)
    assert await first.inspector.queues.controls() == []


async def test_a_rate_holds_jobs_back_and_lets_them_go_without_polling(
    make_provider: MakeProvider, until: Until
) -> None:
    meter = Meter()
    provider = make_provider()
    provider.on("placed")(meter.run)
    async with provider.worker():
        await provider.set_limit("placed", Limit(rate="5/0.3s"))
        emissions = provider.emit_many("placed", range(15))
        await until(lambda: meter.done == 5, "the first ones")
        assert (await provider.inspector.queues.count("placed"))["waiting"] == 10
        assert [await each for each in emissions] == list(range(15))


async def test_a_drain_waits_for_what_a_limit_holds_back_and_not_for_a_paused_queue(
    make_provider: MakeProvider,
) -> None:
    provider, ran = make_provider(), list[int]()
    provider.on("placed")(ran.append)
    provider.on("paid")(ran.append)
    async with provider:
        await provider.set_limit("placed", Limit(rate="1/0.3s"))
        await provider.set_limit("paid", Limit(at_once=1))
        await provider.pause("paid")
        for emission in [*provider.emit_many("placed", range(3)), *provider.emit_many("paid", [9, 9])]:
            await emission.enqueued()
        async with provider.worker() as worker:
            await worker.wait_drained(provider.flush)
    assert ran == [0, 1, 2]


async def test_what_is_no_limit_is_refused(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        with pytest.raises(DefinitionError, match="expected a Limit, or None to take it back, got: 5"):
            await provider.set_limit("placed", 5)  # type: ignore[arg-type]


class Order(msgspec.Struct):
    tenant: str
    n: int


async def test_a_long_backlog_of_one_tenant_delays_no_other(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    event = Event("order", payload=Order, result=int, limit=Limit(by=lambda order: order.tenant, each=2))
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done: list[str] = []

    async def work(order: Order) -> int:
        running[order.tenant] += 1
        most[order.tenant] = max(most[order.tenant], running[order.tenant])
        await asyncio.sleep(0.002)
        running[order.tenant] -= 1
        done.append(order.tenant)
        return order.n

    providers = [make_provider(concurrency=10) for _ in range(2)]
    for provider in providers:
        provider.on(event)(work)
        await stack.enter_async_context(provider.worker())
    large = providers[0].emit_many(event, [Order("large", n) for n in range(300)])
    await providers[0].flush()
    small = providers[0].emit_many(event, [Order(f"t{n}", n) for n in range(10)])
    assert [await each for each in small] == list(range(10))
    assert len(done) < 150, "the others did not wait for the large one"
    assert [await each for each in large] == list(range(300))
    assert most["large"] == 2


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (lambda order: order.nothing, "raised AttributeError"),
        (lambda order: None, "to return an integer, or text of 1 to 512 characters .*, got: None"),
        (lambda order: True, ", got: True"),
        (lambda order: "", ", got: ''"),
        (lambda order: 1.5, ", got: 1.5"),
        (lambda order: "x" * 513, ", got: 'xxx"),
        (lambda order: 10**5000, ", got: "),
    ],
)
async def test_a_limit_key_that_is_none_is_refused_at_the_emit(
    make_provider: MakeProvider, by: Any, said: str
) -> None:
    event = Event("order", payload=Order, limit=Limit(by=by, each=2))
    async with make_provider() as provider:
        with pytest.raises(PayloadError, match=f"the by of the limit of order.*{said}"):
            provider.emit(event, Order("acme", 1))


async def test_a_limit_key_may_be_a_number_and_goes_with_all_options(make_provider: MakeProvider) -> None:
    event = Event("order", payload=Order, result=int, limit=Limit(by=lambda order: order.n, each=1))
    provider = make_provider()

    @provider.on(event)
    @provider.on(event, group="audit")
    async def work(order: Order) -> int:
        return order.n

    async with provider.worker():
        plain = provider.emit(event, Order("a", 1))
        keyed = provider.emit(event, Order("a", 1), idempotency_key="k", delay=0.01, priority=3)
        assert [await plain, await keyed] == [1, 1]
