"""Jobs that a test keeps, releases and drains, and a handler that it runs alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from eventbus import (
    Batch,
    CallNext,
    Event,
    EventContext,
    EventProvider,
    HandlerError,
    Limit,
    PayloadError,
    Retry,
    UsageError,
)
from eventbus.testing import TestBus
from workflows import FlowContext, WorkflowProvider, durable, task

provider = EventProvider(name="shop")
flows = WorkflowProvider(provider)
done: list[Any] = []

pay = Event("pay", payload=int, result=str)
mail = Event("mail", payload=str)
limited = Event("limited", payload=int, limit=Limit(rate="1/1m"))
many = Event("many", payload=int, result=int)
slow = Event("slow", payload=float, result=str)


class Declined(Exception):
    pass


declined = Event("declined", payload=int, errors=[Declined])


@asynccontextmanager
async def bank() -> AsyncGenerator[str]:
    yield "the bank"


@pytest.fixture(autouse=True)
def nothing_is_done() -> None:
    done.clear()


provider.lifespan(bank)


@provider.use
async def double(payload: Any, ctx: EventContext, call: CallNext) -> Any:
    done.append(f"around {ctx.event}")
    return await call(payload)


@provider.on(pay, retry=Retry(3, delay="10s"))
async def run_pay(amount: int, ctx: EventContext) -> str:
    if amount < 0 or ctx.attempt <= amount % 10:
        raise ConnectionError(f"not at attempt {ctx.attempt}")
    return f"paid {amount} by {ctx.shared(bank)} at attempt {ctx.attempt}"


@provider.on(pay, group="books")
async def book(amount: int) -> None:
    done.append(("booked", amount))


@provider.on(mail)
async def send(to: str) -> None:
    done.append(to)


@provider.on(limited)
async def run_limited(number: int) -> None:
    done.append(number)


@provider.on(many, batch=Batch(size=10, wait="1s"))
async def run_many(numbers: list[int]) -> list[int]:
    return [number + 1 for number in numbers]


@provider.on(slow, timeout="1 minute", retry=Retry(2, delay="1s"))
async def run_slow(duration: float) -> str:
    await asyncio.sleep(duration)
    return "slept"


@provider.on(declined)
async def run_declined(_: int) -> None:
    raise Declined("no money")


@task()
async def note(text: str) -> None:
    done.append(text)


@durable("trial")
async def trial(ctx: FlowContext[str]) -> None:
    await ctx.step(note, "begun")
    await ctx.sleep("3 days")


flows.register(trial)


async def test_jobs_of_an_event_wait_until_they_are_let_go() -> None:
    async with TestBus(provider) as bus:
        await bus.keep(pay)
        emission = provider.emit(pay, 20, reply_timeout="1 day")
        await provider.emit(mail, "ada")
        await bus.advance("1 hour")
        assert [run.name for run in bus.ran] == ["mail"]
        await bus.release("pay")
        assert sorted(run.name for run in bus.ran) == ["mail", "pay", "pay@books"]
        assert await emission == "paid 20 by the bank at attempt 1"


async def test_draining_runs_what_waits_and_its_retries_and_counts_outcomes() -> None:
    async with TestBus(provider) as bus:
        for amount in (10, 12, -1):
            provider.emit(pay, amount, reply=False)
        provider.emit(mail, "ada", reply=False)
        provider.emit(mail, "bob", reply=False, delay="1 day")
        assert await bus.drain("pay") == (5, 1, 0)  # three of the group books
        assert "ada" in done  # one worker runs both
        assert await bus.drain() == (0, 0, 0)
        await bus.advance("1 day")
        assert done[-1] == "bob"


async def test_draining_waits_for_a_limit_and_for_handlers() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        provider.emit_many(limited, range(5), reply=False)
        provider.emit(slow, 30.0, reply=False)
        assert (await bus.drain(limited)).completed == 5
        assert [each for each in done if isinstance(each, int)] == [0, 1, 2, 3, 4]
        assert 240 <= (bus.now - began).total_seconds() < 310


async def test_draining_leaves_what_is_paused_and_flows_that_sleep() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        await bus.keep(mail)
        provider.emit(mail, "ada", reply=False)
        await flows.execute(trial, "x")
        await bus.drain()
        assert done == ["begun"]
        assert (bus.now - began).total_seconds() < 1


async def test_a_handler_runs_alone_as_a_worker_runs_it() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        assert await bus.run(pay, 22) == "paid 22 by the bank at attempt 3"
        assert (bus.now - began).total_seconds() == 30
        assert [run.name for run in bus.ran] == ["pay", "pay", "pay"]  # no other group
        assert done == ["around pay"] * 3
        queues = {queue.name: queue for queue in await provider.inspector.queues.list()}
        assert all(queue.completed == queue.failed == queue.waiting == 0 for queue in queues.values())


async def test_a_handler_that_runs_alone_fails_as_its_emitter_would_hear() -> None:
    async with TestBus(provider) as bus:
        with pytest.raises(HandlerError, match="not at attempt 3"):
            await bus.run(pay, -1)
        with pytest.raises(Declined, match="no money"):
            await bus.run(declined, 1)
        with pytest.raises(HandlerError, match="longer than its timeout of 60"):
            await bus.run(slow, 3600.0)
        assert [run.name for run in bus.ran].count("slow") == 2
        assert await bus.run(slow, 59.0) == "slept"


async def test_other_groups_and_batches_run_alone() -> None:
    async with TestBus(provider) as bus:
        await bus.run(pay, 10, group="books")
        assert done[-1] == ("booked", 10)
        assert await bus.run(many, 1) == 2


async def test_a_handler_that_runs_alone_may_be_faked_and_failed() -> None:
    async with TestBus(provider) as bus:
        bus.fail(pay)
        bus.replace(pay, returns="p")
        assert await bus.run(pay, 10) == "p"
        assert [run.attempt for run in bus.ran] == [1, 2]


async def test_what_cannot_run_alone_is_refused() -> None:
    async with TestBus(provider) as bus:
        with pytest.raises(PayloadError):
            await bus.run(pay, "much")  # pyright: ignore[reportArgumentType, reportCallIssue]
        with pytest.raises(UsageError, match="did you mean 'mail'"):
            await bus.run("mial", "ada")
        with pytest.raises(UsageError, match="named 'pay@boks'; did you mean 'pay@books'"):
            await bus.run(pay, 1, group="boks")
        await bus.stop_worker()
        with pytest.raises(UsageError, match="no worker of the bus serves pay; start one"):
            await bus.run(pay, 1)


async def test_an_event_without_a_handler_cannot_be_kept() -> None:
    async with TestBus(provider) as bus:
        for call in (bus.keep, bus.release):
            with pytest.raises(UsageError, match="did you mean 'mail'"):
                await call("mial")
