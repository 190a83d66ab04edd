"""Batch handlers: one call takes many jobs, and each of them has an outcome, attempts and a context of its
own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import (
    Batch,
    BatchContext,
    Event,
    EventContext,
    EventProvider,
    HandlerError,
    Handlers,
    Later,
    Limit,
    Retry,
    SyncBatchContext,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

doubled = Event("doubled", payload=int, result=int)
noted = Event("noted", payload=int, result=None)


class OutOfStockError(Exception): ...


@pytest.mark.parametrize("where", ["async", "thread"])
async def test_one_call_takes_many_jobs_and_each_gets_the_result_in_its_place(
    make_provider: MakeProvider, where: str
) -> None:
    provider = make_provider()
    sizes: list[int] = []
    threads: set[int] = set()

    async def in_loop(numbers: list[int]) -> list[int | Exception]:
        sizes.append(len(numbers))
        return [2 * n for n in numbers]

    def in_thread(numbers: list[int]) -> list[int]:
        threads.add(threading.get_ident())
        sizes.append(len(numbers))
        return [2 * n for n in numbers]

    if where == "async":
        provider.on(doubled, batch=Batch(size=40, wait="5s"))(in_loop)
    else:
        provider.on(doubled, batch=Batch(size=40, wait="5s"))(in_thread)
    async with provider, provider.worker():
        emissions = provider.emit_many(doubled, range(200))
        assert await asyncio.gather(*emissions) == [2 * n for n in range(200)]
    assert sizes == [40] * 5, "full ones begin at once"
    assert threading.get_ident() not in threads


async def test_without_a_wait_a_call_takes_what_is_there(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    calls: list[list[int]] = []
    go_on = asyncio.Event()

    @provider.on(doubled, batch=Batch(size=100), concurrency=1)
    async def double(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        await go_on.wait()
        return [2 * n for n in numbers]

    async with provider, provider.worker():
        first = provider.emit(doubled, 1)
        await until(lambda: calls == [[1]], "a lone job does not wait")
        others = provider.emit_many(doubled, range(2, 32))
        await others[-1].enqueued()
        go_on.set()
        assert [await first, *[await each for each in others]] == [2 * n for n in range(1, 32)]
    assert calls == [[1], list(range(2, 32))], "what came meanwhile is one call"


async def test_a_call_begins_when_the_first_job_has_waited(make_provider: MakeProvider) -> None:
    provider = make_provider()
    sizes: list[int] = []

    @provider.on(doubled, batch=Batch(size=100, wait="150ms"))
    async def double(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return [2 * n for n in numbers]

    async with provider, provider.worker():
        loop = asyncio.get_running_loop()
        began = loop.time()
        emissions: list[Any] = []
        for n in range(3):
            emissions.append(provider.emit(doubled, n))
            await emissions[-1].enqueued()
        assert await asyncio.gather(*emissions) == [0, 2, 4]
        assert loop.time() - began > 0.14
    assert sizes == [3]


async def test_an_exception_in_the_list_is_the_error_of_that_job_alone(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(3, delay="1ms"))
    stocked = Event("stocked", payload=int, result=int, errors=[OutOfStockError])
    seen: list[int] = []

    @provider.on(stocked, batch=Batch(size=10, wait="100ms"))
    async def count(numbers: list[int]) -> list[int | Exception]:
        seen.extend(numbers)
        bad: dict[int, Exception] = {1: ValueError("no"), 2: OutOfStockError("two"), 3: StopIteration()}
        return [bad.get(n, n) for n in numbers]

    async with provider, provider.worker():
        outcomes = await asyncio.gather(*provider.emit_many(stocked, range(5)), return_exceptions=True)
    assert (outcomes[0], outcomes[4]) == (0, 4)
    assert isinstance(outcomes[1], HandlerError)
    assert (outcomes[1].type_name, outcomes[1].attempts) == ("ValueError", 3)
    assert isinstance(outcomes[2], OutOfStockError), "a declared error is an answer"
    assert isinstance(outcomes[3], HandlerError)
    assert [seen.count(n) for n in range(5)] == [1, 3, 1, 3, 1], "only they run again"


@pytest.mark.parametrize("group", ["default", "audit"])
async def test_any_kind_of_exception_in_the_list_fails_its_job(
    make_provider: MakeProvider, until: Until, group: str
) -> None:
    provider = make_provider(retry=Retry(1))
    returned = [asyncio.CancelledError("shed"), KeyboardInterrupt(), StopIteration(), SystemExit(3), None]

    @provider.on(noted, batch=Batch(size=5, wait="5s"), group=group)
    async def note(numbers: list[int]) -> Any:
        return [returned[n] for n in numbers]  # as `gather(..., return_exceptions=True)` returns them

    async with provider, provider.worker():
        emissions = provider.emit_many(noted, range(5), reply=False)
        await provider.flush()
        ids = [each.job_id + ("" if group == "default" else "@audit") for each in emissions]
        reports = [await provider.inspector.jobs.get(job_id) for job_id in ids]
        while any(report.state not in ("failed", "completed") for report in reports):
            reports = [await provider.inspector.jobs.get(job_id) for job_id in ids]
        assert [report.failures[0].type for report in reports[:4]] == [
            "asyncio.exceptions.CancelledError",
            "KeyboardInterrupt",
            "RuntimeError",
            "SystemExit",
        ]
        assert "returned a StopIteration" in reports[2].failures[0].message
        assert reports[4].state == "completed"


@pytest.mark.parametrize("where", ["async", "thread"])
async def test_a_handler_that_exits_fails_its_jobs_and_not_its_worker(
    make_provider: MakeProvider, where: str
) -> None:
    provider = make_provider(retry=Retry(1))

    async def leave(numbers: list[int]) -> list[int]:
        raise SystemExit(3)

    def leave_thread(numbers: list[int]) -> list[int]:
        raise SystemExit(3)

    provider.on(doubled, batch=Batch(size=2, wait="5s"))(leave if where == "async" else leave_thread)
    async with provider, provider.worker():
        for emission in provider.emit_many(doubled, [1, 2]):
            with pytest.raises(HandlerError, match="SystemExit: 3"):
                await emission


async def test_what_the_handler_raises_is_the_error_of_each_by_its_own_attempts(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(retry=Retry(4, delay="1ms"))
    calls: list[list[int]] = []

    @provider.on(doubled, batch=Batch(size=3, wait="300ms"))
    async def double(numbers: list[int]) -> list[int]:
        calls.append(sorted(numbers))
        if len(calls) < 3:
            raise ConnectionError("away")
        return [2 * n for n in numbers]

    async with provider, provider.worker():
        once = provider.emit(doubled, 1, retry=Retry(1))
        others = provider.emit_many(doubled, [2, 3])
        with pytest.raises(HandlerError, match=r"away.*after 1 attempt"):
            await once
        assert [await each for each in others] == [4, 6]
    assert calls == [[1, 2, 3], [2, 3], [2, 3]]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1], "was given 3 payloads and returned 1 results"),
        ([1, 2, 3, 4], "was given 3 payloads and returned 4 results"),
        (None, "to return a list of 3 results or exceptions"),
        ({1: 2}, "to return a list of 3 results or exceptions"),
    ],
)
async def test_a_list_of_another_length_fails_all_with_both_lengths(
    make_provider: MakeProvider, returned: Any, message: str
) -> None:
    provider = make_provider(retry=Retry(3, delay="1ms"))
    calls: list[int] = []

    def double(numbers: Any) -> Any:
        calls.append(len(numbers))
        return returned

    provider.on(doubled, batch=Batch(size=3, wait="5s"))(double)
    async with provider, provider.worker():
        for outcome in await asyncio.gather(*provider.emit_many(doubled, range(3)), return_exceptions=True):
            assert isinstance(outcome, HandlerError)
            assert message in outcome.remote_message
            assert outcome.attempts == 1
    assert calls == [3], "another attempt would end the same"


async def test_an_event_without_a_result_needs_no_list(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on(noted, batch=Batch(size=3))
    async def note(numbers: list[int]) -> None: ...

    @provider.on(doubled, group="audit", batch=Batch(size=3))
    async def audit(numbers: list[int]) -> None: ...

    @provider.on(doubled)
    async def double(n: int) -> int:
        return 2 * n

    async with provider, provider.worker():
        assert await asyncio.gather(*provider.emit_many(noted, range(5))) == [None] * 5
        emission = provider.emit(doubled, 1)
        assert await emission == 2
        report = await provider.inspector.jobs.get(f"{emission.job_id}@audit")
        assert report.failures == []


async def test_a_payload_or_a_result_that_does_not_fit_fails_its_job_alone(
    make_provider: MakeProvider,
) -> None:
    provider, other = make_provider(), make_provider()
    wild = Event("doubled")

    @provider.on(doubled, batch=Batch(size=3, wait="100ms"))
    async def double(numbers: list[int]) -> list[Any]:
        return [str(n) if n == 3 else n for n in numbers]

    async with provider, other, provider.worker():
        bad = other.emit(wild, "text")
        good = [provider.emit(doubled, n) for n in (1, 2, 3)]
        with pytest.raises(HandlerError, match="PayloadError"):
            await bad
        assert [await good[0], await good[1]] == [1, 2]
        with pytest.raises(HandlerError, match="PayloadError"):
            await good[2]


async def test_one_job_of_a_batch_may_be_put_off(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(1))
    seen: list[tuple[int, int]] = []

    @provider.on(doubled, batch=Batch(size=2, wait="100ms"))
    async def double(numbers: list[int], ctx: BatchContext) -> list[int | Exception]:
        runs = len(seen)
        seen.extend((n, item.attempt) for n, item in zip(numbers, ctx.items, strict=True))
        return [Later("10ms") if n == 1 and not runs else n for n in numbers]

    async with provider, provider.worker():
        assert await asyncio.gather(*provider.emit_many(doubled, [1, 2])) == [1, 2]
    assert seen == [(1, 1), (2, 1), (1, 1)]


async def test_each_item_has_the_context_of_its_job(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(2, delay="1ms"))
    causes: dict[int, tuple[str | None, str, Any]] = {}

    @provider.on(noted)
    async def note(n: int, ctx: EventContext) -> None:
        causes[n] = (ctx.causation_id, ctx.correlation_id, ctx.meta)

    @provider.on(doubled, batch=Batch(size=3, wait="5s"))
    async def double(numbers: list[int], ctx: BatchContext) -> list[int | Exception]:
        assert (ctx.event, ctx.group, ctx.stopping, len(ctx.items)) == ("doubled", "default", None, 3)
        assert "causation" not in str(provider.emit(noted, 99).correlation_id)
        for n, item in zip(numbers, ctx.items, strict=True):
            await item.progress(n)
            await item.save({"n": n})
            assert await item.saved(dict) == {"n": n}
            await item.emit(noted, n)
            await asyncio.gather(*item.emit_many(noted, [10 + n]))
        ctx.log.info("doubled")
        return list(numbers)

    async with provider, provider.worker():
        emissions = [provider.emit(doubled, n, meta={"n": n}) for n in range(3)]
        assert await asyncio.gather(*emissions) == [0, 1, 2]
        for n, emission in enumerate(emissions):
            own = (emission.job_id, emission.correlation_id, {"n": n})
            assert causes[n] == causes[10 + n] == own
            assert (await provider.inspector.jobs.get(emission.job_id)).progress == n
        assert causes[99][0] is None, "the call itself runs in the name of no job"


async def test_items_of_a_thread_emit_and_save_in_the_name_of_their_jobs(make_provider: MakeProvider) -> None:
    provider = make_provider()
    causes: dict[int, str | None] = {}

    @provider.on(noted)
    async def note(n: int, ctx: EventContext) -> None:
        causes[n] = ctx.causation_id

    @provider.on(doubled, batch=Batch(size=2, wait="5s"))
    def double(numbers: list[int], ctx: SyncBatchContext) -> list[int]:
        for n, item in zip(numbers, ctx.items, strict=True):
            item.save(n)
            item.emit(noted, n).result(240)
        assert ctx.stopping is None
        return [item.saved(int, default=-1) for item in ctx.items]

    async with provider, provider.worker():
        emissions = provider.emit_many(doubled, [0, 1])
        assert await asyncio.gather(*emissions) == [0, 1]
    assert causes == {n: emission.job_id for n, emission in enumerate(emissions)}


async def test_middleware_is_around_each_job(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.use
    async def around(payload: Any, ctx: EventContext, call: Any) -> Any:
        if payload == 0:
            return -1  # it does not reach the handler
        return await call(payload + 1) + 1

    @provider.on(doubled, batch=Batch(size=2, wait="5s"))
    async def double(numbers: list[int]) -> list[int]:
        assert sorted(numbers) == [2, 3]
        return [10 * n for n in numbers]

    async with provider, provider.worker():
        assert await asyncio.gather(*provider.emit_many(doubled, [0, 1, 2])) == [-1, 21, 31]


async def test_a_collection_and_a_subscription_take_batches(make_provider: MakeProvider) -> None:
    provider = make_provider()
    handlers = Handlers()

    @handlers.on(doubled, batch=Batch(size=2, wait="5s"))
    async def double(numbers: list[int]) -> list[int]:
        return [2 * n for n in numbers]

    provider.include(handlers)

    async def by_name(texts: list[str]) -> list[str]:
        return [f"{text}/{len(texts)}" for text in texts]

    async with provider, provider.worker():
        await provider.subscribe("named", by_name, batch=Batch(size=2, wait="5s"))
        assert await asyncio.gather(*provider.emit_many(doubled, [1, 2])) == [2, 4]
        assert await asyncio.gather(*provider.emit_many("named", ["a", "b"])) == ["a/2", "b/2"]


async def test_limits_and_priorities_hold_for_the_jobs_of_a_batch(make_provider: MakeProvider) -> None:
    provider = make_provider()
    limited = Event("limited", payload=int, result=int, limit=Limit(at_once=3))
    calls: list[list[int]] = []

    @provider.on(limited, batch=Batch(size=10), concurrency=1)
    async def run(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return numbers

    async with provider:
        emissions = [provider.emit(limited, n, priority=-n) for n in range(9)]
        await provider.flush()
        async with provider.worker():
            assert await asyncio.gather(*emissions) == list(range(9))
    assert max(map(len, calls)) <= 3
    assert calls[0] == [8, 7, 6], "the most urgent ones first"
