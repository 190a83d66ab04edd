"""What fresh eyes broke: each test fails on the kit as they found it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
import pytest
from anyio.to_thread import run_sync

from eventbus import Event, EventContext, EventProvider, Retry, SignalRefused, UsageError
from eventbus.model import clock
from eventbus.telemetry.gauge_board import boards
from eventbus.testing import TestBus, TimeStandsStill
from workflows import FlowContext, Signal, WorkflowProvider, durable, task

a = Event("a", payload=int, result=int)
b = Event("b", payload=int, result=int)
waiting = Event("waiting", payload=float, result=str)
note = Event("note", payload=dict[str, int])
approved = Signal("approved", bool)
provider = EventProvider(name="attacked")
other = EventProvider(name="other", prefix="other")
flows = WorkflowProvider(provider)
groups: list[int] = []


@provider.on(a)
@provider.on(b)
async def run_both(number: int) -> int:
    return number


@provider.on(a, group="books")
async def run_books(number: int) -> None:
    groups.append(number)


@other.on(a)
async def run_other(number: int) -> int:
    return -number


@provider.on(waiting, retry=Retry(2, delay="2h"))
async def run_waiting(seconds: float, ctx: EventContext) -> str:
    if seconds < 0 and ctx.attempt == 1:
        raise ConnectionError("not yet")
    await asyncio.sleep(seconds) if seconds < 1e6 else await asyncio.Event().wait()
    return "waited"


@task
async def operate() -> None: ...


@durable("surgery")
async def surgery(ctx: FlowContext[None]) -> None:
    await ctx.wait_for(approved)
    await ctx.step(operate)


flows.register(surgery)


async def test_a_name_of_a_run_is_that_run_alone() -> None:
    groups.clear()
    async with TestBus(provider) as bus:
        fake = bus.replace("a", returns=7)
        assert await provider.emit(a, 1) == 7
        await bus.settle()
        assert (fake.calls, groups) == ([1], [1])


async def test_a_function_of_two_events_is_meant_for_both() -> None:
    async with TestBus(provider) as bus:
        bus.replace(run_both, returns=7)
        assert [await provider.emit(a, 1), await provider.emit(b, 1)] == [7, 7]


async def test_a_function_of_one_program_is_not_that_of_another() -> None:
    async with TestBus(provider, other) as bus:
        bus.replace(run_other, returns=7)
        assert [await provider.emit(a, 1), await other.emit(a, 1)] == [1, 7]


async def test_two_waits_at_once_each_have_their_end() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        ends: list[float] = []

        async def wait(hours: int) -> None:
            await bus.advance(f"{hours}h")
            ends.append((bus.now - began).total_seconds() / 3600)

        await asyncio.gather(wait(2), wait(1), wait(3))
        assert ends == [1, 2, 3]


async def test_an_emission_during_an_outage_is_answered_after_it() -> None:
    async with TestBus(provider) as bus:
        outage = asyncio.create_task(bus.server_away("5s"))
        await bus.advance("1s")
        began = bus.now
        emission = provider.emit(a, 1)
        await bus.advance("1s")
        assert not emission.done()
        assert await emission == 1
        assert (bus.now - began).total_seconds() >= 4
        await outage


async def test_a_handler_that_hangs_is_a_standstill() -> None:
    async with TestBus(provider) as bus:
        provider.emit(waiting, 1e9, reply=False)
        with pytest.raises(TimeStandsStill, match="waiting"):
            await asyncio.Event().wait()
        with pytest.raises(TimeStandsStill, match="waiting"):
            await bus.drain()


async def test_a_wait_inside_of_a_hold_is_refused() -> None:
    async with TestBus(provider) as bus:
        with bus.hold(), pytest.raises(UsageError, match=r"time stands inside of `with bus.hold\(\)"):
            await bus.advance("1s")
        await bus.advance("1s")


async def test_a_worker_that_is_killed_ends_a_lone_run_and_nothing_else() -> None:
    async with TestBus(provider) as bus:
        running = asyncio.create_task(bus.run(waiting, 60.0))
        await bus.advance("1s")
        bus.kill_worker()
        with pytest.raises(UsageError, match="the worker was killed while it ran the handler"):
            await running
        await bus.start_worker()
        assert await bus.run(waiting, 60.0) == "waited"
    async with TestBus(provider):
        assert await provider.emit(a, 1) == 1


async def test_an_answer_that_was_refused_reaches_the_test_at_the_end() -> None:
    async def run() -> None:
        async with TestBus(provider) as bus:
            flow = await flows.execute(surgery, None)
            bus.signal_when(flow, approved, True, after=operate)
            await flow.signal(approved, True)
            await flow.result()
            await asyncio.sleep(5)

    with pytest.raises(SignalRefused):
        await run()


async def test_a_retry_behind_a_thousand_delayed_jobs_is_drained() -> None:
    async with TestBus(provider) as bus:
        provider.emit_many(waiting, [0.0] * 1100, delay="1h", reply=False)
        provider.emit(waiting, -1.0, reply=False)
        drained = await bus.drain(waiting)
        assert (drained.completed, drained.failed) == (1101, 0)


async def test_what_was_emitted_does_not_change_later() -> None:
    async with TestBus(provider) as bus:
        payload = {"id": 1}
        provider.emit(note, payload, reply=False)
        payload["id"] = 2
        assert bus.emitted(note) == [{"id": 1}]


async def test_a_name_that_is_nearly_one_is_refused_where_its_absence_would_pass() -> None:
    async with TestBus(provider) as bus:
        with pytest.raises(UsageError, match="did you mean 'waiting'"):
            await bus.refuse("waitin")
        with pytest.raises(UsageError, match="expected an Event, or its name"):
            bus.emitted(5)  # pyright: ignore[reportCallIssue, reportArgumentType]
        await bus.refuse("something else")


def test_a_second_loop_is_refused_and_the_clock_is_real_afterwards() -> None:
    refused: list[BaseException] = []

    async def enter() -> None:
        async with TestBus(other):
            raise AssertionError

    def run() -> None:
        try:
            asyncio.run(enter())
        except UsageError as error:
            refused.append(error)

    async def hold() -> None:
        async with TestBus(provider) as bus:
            with bus.hold():
                thread = threading.Thread(target=run)
                thread.start()
                while thread.is_alive():
                    await anyio.to_thread.run_sync(thread.join, 0.01)
            assert await provider.emit(a, 1) == 1

    asyncio.run(hold())
    assert "one TestBus at a time" in str(refused[0])
    assert clock.now() < 1.89e9, "a time before 2030"


async def test_a_thread_that_an_imported_run_sync_starts_holds_time() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        async with asyncio.timeout(5):
            await run_sync(threading.Event().wait, 0.2)
        assert bus.now == began


async def test_nothing_acts_before_the_bus_is_entered_or_after_it_is_left() -> None:
    bus = TestBus(provider)
    for act in (lambda: bus.now, bus.kill_worker, bus.lose_connections):
        with pytest.raises(UsageError, match="the bus is not entered"):
            act()
    async with bus:
        pass
    for ended in (bus.run(a, 1), bus.start_worker(), bus.stop_worker()):
        with pytest.raises(UsageError, match="the bus is not entered"):
            await ended
    assert bus.ran == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"start": "2030-01-01"}, "expected start to be a datetime"),
        ({"lease": 0}, "expected lease"),
        ({"lease": float("nan")}, "expected lease"),
        ({"seed": None}, "expected seed to be an integer"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        TestBus(provider, **options)


def test_what_is_no_provider_is_refused() -> None:
    for given in (flows, "x", [provider]):
        with pytest.raises(UsageError, match="expected a provider"):
            TestBus(given)  # pyright: ignore[reportArgumentType]


async def test_what_is_asked_for_in_a_way_that_cannot_be_meant_is_refused() -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(surgery, None)
        no_signal: Any = "approved"
        bad: list[Any] = [
            lambda: bus.fail(run_both, times=1.5),  # pyright: ignore[reportArgumentType]
            lambda: bus.replace(run_both, raises="x"),  # pyright: ignore[reportArgumentType]
            lambda: bus.signal_when(flow, no_signal, True, after=operate),
            lambda: bus.signal_when(flow, approved, True, after=run_both),
        ]
        for act in bad:
            with pytest.raises(UsageError):
                act()
        provider.emit(note, {"id": 1}, reply=False)
        with pytest.raises(UsageError, match="expected where"):
            await bus.expect(note, 5)  # pyright: ignore[reportCallIssue, reportArgumentType]


async def test_a_bus_begins_at_a_part_of_a_second() -> None:
    start = datetime(2030, 1, 1, microsecond=500_000, tzinfo=UTC)
    async with TestBus(provider, start=start) as bus:
        assert bus.now == start


async def test_a_killed_worker_is_in_no_metric_any_more() -> None:
    """Otherwise the next test of the process reads the slots of two workers."""
    async with TestBus(provider) as bus:
        assert await provider.emit(a, 1) == 1
        assert len(boards) == 1
        bus.kill_worker()
        assert not boards
        await bus.start_worker()
        assert await provider.emit(a, 2) == 2
        assert len(boards) == 1
    assert not boards
