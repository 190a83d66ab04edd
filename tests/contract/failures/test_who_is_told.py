"""Each job that ended as failed is told to the hooks once, with what is known of it, and no other job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from drivers.records import change_record
from importable import process_handlers

from eventbus import Batch, Event, EventContext, EventProvider, HandlerError, JobFailure, Retry

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]
Listen = Callable[[EventProvider], list[JobFailure]]
Working = Callable[[EventProvider], AbstractAsyncContextManager[Callable[[], Awaitable[None]]]]

ONCE = Retry(attempts=1)


class OutOfStock(Exception):
    pass


def _fail(item: int) -> None:
    try:
        raise KeyError("card")
    except KeyError as error:
        raise ValueError(f"no card {item}") from error


async def test_a_hook_is_told_all_that_is_known_of_a_job_that_used_up_its_attempts(
    make_provider: MakeProvider, listen: Listen
) -> None:
    provider = make_provider(retry=Retry(attempts=2, delay=0))
    told = listen(provider)
    provider.on("charge")(_fail)
    async with provider.worker() as worker:
        with provider.context(correlation_id="req-1", tenant="a"):
            emission = provider.emit("charge", 7)
        with pytest.raises(HandlerError):
            await emission
    (failure,) = told
    assert (failure.name, failure.group, failure.step, failure.queue) == (
        "charge",
        "default",
        "",
        "event.charge",
    )
    assert (failure.job_id, failure.root_id, failure.flow_id) == (emission.job_id, emission.job_id, "")
    assert (failure.correlation_id, failure.meta) == ("req-1", {"tenant": "a"})
    assert (failure.attempts, failure.stalls, failure.outcome) == (2, 0, "failed")
    assert (failure.error_type, failure.message) == ("ValueError", "no card 7")
    assert failure.error == "ValueError: no card 7"
    assert failure.causes == [("KeyError", "'card'")]
    assert "in _fail" in failure.traceback
    assert (failure.is_declared, failure.rollback, failure.worker) == (False, "", worker.id)


async def test_every_group_is_told_and_what_nobody_awaits_as_well(
    make_provider: MakeProvider, listen: Listen, working: Working
) -> None:
    provider = make_provider(retry=ONCE)
    told = listen(provider)
    provider.on("sold")(_fail)
    provider.on("sold", group="mail")(_fail)
    provider.on("sold", group="books")(lambda item: item)
    async with working(provider) as drain:
        emission = provider.emit("sold", 7, reply=False)
        await drain()
    groups = {each.group: (each.job_id, each.correlation_id, each.queue) for each in told}
    assert len(told) == 2
    assert groups == {
        "default": (emission.job_id, emission.job_id, "event.sold"),
        "mail": (f"{emission.job_id}@mail", emission.job_id, "event.sold@mail"),
    }


async def test_nothing_is_told_of_a_success_a_retry_that_helped_and_a_job_that_is_put_off(
    make_provider: MakeProvider, listen: Listen, working: Working
) -> None:
    provider = make_provider(retry=Retry(attempts=3, delay=0))
    told = listen(provider)

    @provider.on("flaky")
    async def flaky(_: int, ctx: EventContext) -> str:
        if ctx.attempt < 3:
            raise ValueError("again")
        return "done"

    async with working(provider):
        assert await provider.emit("flaky", 1) == "done"
    assert told == []


async def test_a_declared_error_says_so(
    make_provider: MakeProvider, listen: Listen, working: Working
) -> None:
    provider, event = make_provider(), Event("sell", payload=int, errors=[OutOfStock])
    told = listen(provider)

    @provider.on(event)
    async def sell(item: int) -> None:
        raise OutOfStock(item)

    async with working(provider):
        with pytest.raises(OutOfStock):
            await provider.emit(event, 7)
    assert [(each.is_declared, each.attempts) for each in told] == [(True, 1)]


async def test_an_emission_that_expired_is_told_as_expired(
    make_provider: MakeProvider, listen: Listen
) -> None:
    provider = make_provider(retry=ONCE)
    told = listen(provider)
    provider.on("offer")(lambda n: n)
    async with provider:
        emission = provider.emit("offer", 1, ttl="1ms", reply=False)
        await emission.enqueued()
        await asyncio.sleep(0.01)  # longer than its ttl, by the clock of the server
        async with provider.worker() as worker:
            await worker.wait_drained(provider.flush)
    assert [(each.outcome, each.error_type, each.attempts) for each in told] == [
        ("expired", "EmissionExpired", 0)
    ]


@pytest.mark.parametrize("body", ["no json", '{"p":'])
async def test_a_message_that_cannot_be_read_is_told(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, body: str, listen: Listen
) -> None:
    provider = make_provider(retry=Retry(attempts=5, delay=0))
    told = listen(provider)
    provider.on("ask")(lambda n: n)
    async with provider:
        emission = provider.emit("ask", 1)
        await emission.enqueued()
        admin(*change_record(f"{prefix}:2:{{0}}:job:{emission.job_id}", body=body))
        async with provider.worker():
            with pytest.raises(HandlerError):
                await emission
    assert [(each.error_type, each.correlation_id, each.meta) for each in told] == [
        ("StoreCorrupt", emission.job_id, {})
    ]


@pytest.mark.real
async def test_timeouts_batches_threads_and_processes_are_told_alike(
    make_provider: MakeProvider, listen: Listen, working: Working
) -> None:
    provider = make_provider(retry=ONCE)
    told = listen(provider)

    @provider.on("slow", timeout="10ms")
    async def slow(_: int) -> None:
        await asyncio.Event().wait()

    @provider.on("many", batch=Batch(size=2, wait=0))
    async def many(given: list[int]) -> list[Any]:
        return [ValueError("odd") if n % 2 else n for n in given]

    provider.on("thread")(_fail)
    provider.on("process", pool="process")(process_handlers.fail)
    async with working(provider) as drain:
        provider.emit("slow", 1, reply=False)
        provider.emit_many("many", [1, 2, 3], reply=False)
        provider.emit("thread", 1, reply=False)
        provider.emit("process", "", reply=False)
        await drain()
    assert sorted((each.name, each.error_type) for each in told) == [
        ("many", "ValueError"),
        ("many", "ValueError"),
        ("process", "ValueError"),
        ("slow", "TimeoutError"),
        ("thread", "ValueError"),
    ]


async def test_a_job_that_is_retried_by_hand_and_fails_again_is_told_again(
    make_provider: MakeProvider, listen: Listen, working: Working
) -> None:
    provider = make_provider(retry=ONCE)
    told = listen(provider)
    provider.on("charge")(_fail)
    async with working(provider) as drain:
        emission = provider.emit("charge", 7, reply=False)
        await drain()
        assert await provider.inspector.jobs.retry(emission.job_id)
        await drain()
    assert [each.job_id for each in told] == [emission.job_id, emission.job_id]
