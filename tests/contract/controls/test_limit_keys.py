"""Limits by a key of the payload: where keys come from, and what is refused, at definition, at the emit or at
run time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from eventbus import DefinitionError, Event, EventProvider, Limit, PayloadError

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Order(msgspec.Struct):
    tenant: str
    n: int


def tenant_of(order: Order) -> str:
    return order.tenant


def _event(**limit: Any) -> Event[Order, int]:
    given: dict[str, Any] = {"each": 1, **limit}
    return Event("order", payload=Order, result=int, limit=Limit(by=tenant_of, **given))


async def test_what_a_schedule_emits_has_the_limit_key_of_its_payload(
    make_provider: MakeProvider, until: Until
) -> None:
    event, done, gate = _event(), list[int](), asyncio.Event()
    provider = make_provider(concurrency=10)

    @provider.on(event)
    async def work(order: Order) -> int:
        done.append(order.n)
        await gate.wait()
        return order.n

    provider.schedules.every("1 day", event, id="daily", payload=Order("a", 7))
    async with provider.worker():
        schedule = provider.schedules.get("daily")
        first = provider.emit(event, Order("a", 1))
        await until(lambda: done == [1], "these jobs have begun")
        await schedule.run_now()
        others = [provider.emit(event, Order("b", 2)), provider.emit(event, Order("a", 3))]
        await until(lambda: done == [1, 2], "these jobs have begun")
        (queue,) = await provider.inspector.queues.controls()
        assert (queue.running, queue.waiting) == (2, 2)
        gate.set()
        assert [await each for each in (first, *others)] == [1, 2, 3]
        assert done == [1, 2, 7, 3]


async def test_a_schedule_whose_payload_has_no_limit_key_is_refused(make_provider: MakeProvider) -> None:
    event = Event("order", payload=Order, limit=Limit(by=lambda order: order.nothing))
    provider = make_provider()
    with pytest.raises(PayloadError, match="the by of the limit of order raised AttributeError"):
        provider.schedules.every("1 day", event, id="daily", payload=Order("a", 7))


async def test_a_payload_that_is_replaced_has_its_own_limit_key(
    make_provider: MakeProvider, until: Until
) -> None:
    event, done, gate = _event(), list[int](), asyncio.Event()
    provider = make_provider(concurrency=10)

    @provider.on(event)
    async def work(order: Order) -> int:
        done.append(order.n)
        await gate.wait()
        return order.n

    async with provider.worker():
        first = provider.emit(event, Order("a", 1))
        await until(lambda: done == [1], "these jobs have begun")
        second = provider.emit(event, Order("a", 2))
        await provider.flush()
        assert await provider.inspector.jobs.replace_payload(event, second.job_id, Order("b", 3))
        await until(lambda: done == [1, 3], "these jobs have begun")
        gate.set()
        assert [await first, await second] == [1, 3]


async def test_jobs_of_before_the_limit_run_beside_those_that_have_keys(make_provider: MakeProvider) -> None:
    before, event = Event("order", payload=Order, result=int), _event(at_once=3)
    async with make_provider() as emitter:
        old = [emitter.emit(before, Order("a", n)) for n in range(20)]
        await emitter.flush()
        provider = make_provider(concurrency=10)

        @provider.on(event)
        async def work(order: Order) -> int:
            return order.n

        async with provider.worker():
            new = [provider.emit(event, Order("a", n)) for n in range(20)]
            await provider.set_limit(event, Limit(at_once=2, each=2))
            assert [await each for each in (*new, *old)] == [*range(20), *range(20)]
            await provider.set_limit(event, None)
            assert await provider.emit(event, Order("c", 1)) == 1


async def test_an_event_that_has_by_alone_has_turns_and_no_limit(
    make_provider: MakeProvider, until: Until
) -> None:
    event, done = Event("order", payload=Order, result=int, limit=Limit(by=tenant_of)), list[str]()
    provider = make_provider(concurrency=2)

    @provider.on(event)
    async def work(order: Order) -> int:
        done.append(order.tenant)
        return order.n

    async with provider.worker():
        await provider.pause(event)
        jobs = [provider.emit(event, Order("a", n)) for n in range(40)]
        jobs += [provider.emit(event, Order("b", n)) for n in range(2)]
        await provider.flush()
        await provider.resume(event)
        assert await provider.inspector.queues.controls() == []
        assert [await each for each in jobs] == [*range(40), 0, 1]
        assert "b" in done[:12]
        with pytest.raises(
            DefinitionError, match="has by alone, which bounds nothing; give at_once, rate, each"
        ):
            await provider.set_limit(event, Limit(by=tenant_of))


async def test_a_limit_of_each_key_is_set_only_where_jobs_have_keys(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        with pytest.raises(DefinitionError, match=r"has each, and event 'plain' has no limit with by"):
            await provider.set_limit(Event("plain"), Limit(each=5))
        with pytest.raises(DefinitionError, match=r"without by, or with that of event 'order'.*got: "):
            await provider.set_limit(_event(), Limit(by=str, each=5))
        with pytest.raises(DefinitionError, match=r"that of the event, which must be given itself.*got: "):
            await provider.set_limit("order", Limit(by=tenant_of, each=5))
        with pytest.raises(
            DefinitionError, match=r"has each_rate, and workflow.sum is a queue of flows, so its"
        ):
            await provider.set_limit("workflow.sum", Limit(each_rate="5/1s"))
        await provider.set_limit(_event(), Limit(by=tenant_of, each=5))
        await provider.set_limit(_event(), Limit(at_once=9, each_rate="5/1s"))
