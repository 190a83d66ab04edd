"""What a test sees of the emissions of a program, and what it expects of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from eventbus import Event, EventContext, EventProvider, UsageError
from eventbus.testing import TestBus


class Order(msgspec.Struct):
    id: int
    total: int = 0


provider = EventProvider(name="shop")

placed = Event("order.placed", payload=Order, key=lambda order: f"order-{order.id}")
paid = Event("order.paid", payload=Order)
thanks = Event("thanks", payload=str)


@provider.on(placed)
async def place(order: Order, ctx: EventContext) -> None:
    ctx.emit(paid, order, delay="1 hour")


@provider.on(paid)
async def note_paid(order: Order, ctx: EventContext) -> None:
    ctx.emit(thanks, f"for {order.id}", reply=False)


async def test_records_have_key_delay_meta_and_what_caused_them() -> None:
    async with TestBus(provider) as bus:
        with provider.context(tenant="t1", correlation_id="request-1"):
            first = provider.emit(placed, Order(1), meta={"by": "ada"})
        await first
        emitted = bus.emitted(placed)
        assert emitted == [Order(1)]
        (record,) = emitted.records
        assert (record.key, record.delay, record.event) == ("order-1", 0.0, "order.placed")
        assert record.meta == {"tenant": "t1", "by": "ada"}
        assert (record.correlation_id, record.causation_id, record.at) == ("request-1", "", bus.now)
        (caused,) = bus.emitted("order.paid").records
        assert (caused.delay, caused.key, caused.meta) == (3600.0, "", record.meta)
        assert (caused.causation_id, caused.correlation_id) == (first.job_id, "request-1")


async def test_a_time_and_a_debounce_are_delays() -> None:
    async with TestBus(provider) as bus:
        provider.emit(placed, Order(1), at=bus.now + timedelta(minutes=5), reply=False)
        provider.emit(placed, Order(2), debounce="7s", reply=False)
        assert [record.delay for record in bus.emitted(placed).records] == [300.0, 7.0]


async def test_what_is_expected_may_be_there_or_come_in_time() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        provider.emit(placed, Order(1, 20), reply=False)
        record = await bus.expect(placed)
        assert (record.payload, bus.now) == (Order(1, 20), began)
        assert (await bus.expect(thanks, lambda text: "1" in text, within="1h")).payload == "for 1"
        assert bus.now - began == timedelta(hours=1)
        await bus.expect(paid, {"id": 1, "total": 20})


async def test_what_does_not_come_is_told_with_the_near_misses() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        for number in range(1, 9):
            provider.emit(placed, Order(number, 10), reply=False)
        with pytest.raises(AssertionError) as raised:
            await bus.expect(placed, {"id": 3, "total": 11, "tax": 1}, within="10s")
        lines = str(raised.value).splitlines()
        where = "{'id': 3, 'total': 11, 'tax': 1}"
        assert lines[0] == f"no emission of order.placed where {where} within 10 s; near misses:"
        assert lines[1] == "  Order(id=3, total=10): total is 10, not 11; it has no tax"
        assert lines[2] == "  Order(id=1, total=10): id is 1, not 3; total is 10, not 11; it has no tax"
        assert (len(lines), lines[-1]) == (7, "  and 3 more")
        assert bus.now - began == timedelta(seconds=10)


async def test_a_miss_of_a_function_and_of_no_emission_at_all_is_told() -> None:
    async with TestBus(provider) as bus:
        provider.emit(placed, Order(1), reply=False)
        with pytest.raises(AssertionError, match="`where` is not true for it"):
            await bus.expect(placed, lambda order: order.total > 5)
        with pytest.raises(AssertionError, match="no emission of never within 0 s, and none at all"):
            await bus.expect("never", within=0)


async def test_fields_of_an_untyped_payload_are_looked_at() -> None:
    async with TestBus(provider) as bus:
        provider.emit("loose", {"id": 1, "name": "ada"}, reply=False)
        await bus.expect("loose", {"id": 1})
        with pytest.raises(AssertionError, match="name is 'ada', not 'bob'"):
            await bus.expect("loose", {"id": 1, "name": "bob"})


async def test_what_is_refused_must_not_come_in_time() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        await provider.emit(placed, Order(1))
        await bus.refuse(thanks, within="59m")
        assert bus.now - began == timedelta(minutes=59)
        await bus.refuse(paid, {"id": 2})
        with pytest.raises(
            AssertionError, match="expected no emission of thanks, but 'for 1' was emitted at 2030"
        ):
            await bus.refuse(thanks, within="2m")
        with pytest.raises(
            AssertionError, match=r"no emission of order\.paid for which <lambda> of .*, but Order.* by job "
        ):
            await bus.refuse(paid, lambda order: order.id == 1, within=0)


async def test_a_test_may_wait_for_an_emission_of_another_task() -> None:
    async with TestBus(provider) as bus:

        async def emit_late() -> None:
            await asyncio.sleep(30)
            provider.emit(placed, Order(5), reply=False)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(emit_late())
            assert (await bus.expect(placed, {"id": 5}, within="1m")).delay == 0.0


@pytest.mark.parametrize("within", [-1, "-1s", timedelta(seconds=-1)])
async def test_a_time_below_zero_is_refused(within: float | str | timedelta) -> None:
    async with TestBus(provider) as bus:
        for call in (bus.expect, bus.refuse):
            with pytest.raises(UsageError):
                await call(placed, within=within)
