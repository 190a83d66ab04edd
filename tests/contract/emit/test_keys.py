"""Idempotency keys: one run for all emissions of a key, and its outcome for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from drivers.records import change_record, read_record

from eventbus import DefinitionError, Event, EventContext, EventProvider, HandlerError, PayloadError, Retry

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_all_emissions_of_a_key_get_the_outcome_of_one_run(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    providers = [make_provider(concurrency=50) for _ in range(3)]
    runs: list[str] = []
    gate = asyncio.Event()

    async def price(n: int, ctx: EventContext) -> dict[str, int]:
        runs.append(ctx.job_id)
        await gate.wait()
        return {"run": len(runs)}

    for each in providers:
        each.on("price")(price)
        await stack.enter_async_context(each.worker())
    emissions = [each.emit("price", 1, idempotency_key="p-1") for each in providers for _ in range(100)]
    for each in emissions[::7]:
        await each.enqueued()
    gate.set()
    assert [await each for each in emissions] == [{"run": 1}] * 300
    assert len(runs) == 1
    assert {each.job_id for each in emissions} == set(runs)
    late = providers[1].emit("price", 1, idempotency_key="p-1")
    assert await late == {"run": 1}
    assert late.job_id == runs[0]


async def test_all_emissions_of_a_key_get_its_failure_and_the_next_one_runs_again(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    runs: list[str] = []
    gate = asyncio.Event()

    @provider.on("price")
    async def price(_: Any, ctx: EventContext) -> str:
        runs.append(ctx.job_id)
        await gate.wait()
        if len(runs) == 1:
            raise ValueError("the first")
        return "fine"

    async with provider.worker():
        emissions = [provider.emit("price", idempotency_key="k") for _ in range(5)]
        for each in emissions:
            await each.enqueued()
        gate.set()
        for each in emissions:
            with pytest.raises(HandlerError, match="the first"):
                await each
        with pytest.raises(HandlerError, match="the first"):
            await provider.emit("price", idempotency_key="k", reuse_failure=True)
        assert await provider.emit("price", idempotency_key="k") == "fine"
    assert len(runs) == 2


async def test_the_key_function_of_an_event_gives_each_emission_its_key(make_provider: MakeProvider) -> None:
    provider = make_provider()
    priced = Event("priced", payload=dict[str, int], result=int, key=lambda order: f"order-{order['id']}")
    runs: list[int] = []

    @provider.on(priced)
    async def price(order: dict[str, int]) -> int:
        runs.append(order["id"])
        return len(runs)

    async with provider.worker():
        results = [await each for each in provider.emit_many(priced, [{"id": 1}, {"id": 2}, {"id": 1}])]
        assert results[0] == results[2] != results[1]
        # An explicit one wins.
        assert await provider.emit(priced, {"id": 1}, idempotency_key="other") == 3
    assert sorted(runs) == [1, 1, 2]


async def test_a_key_function_that_raises_or_gives_no_key_is_an_error_of_the_emit(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()

    def key(payload: Any) -> Any:
        return payload["id"]

    priced = Event("priced", key=key)
    async with provider:
        with pytest.raises(PayloadError, match="the key function of priced raised KeyError: 'id'"):
            provider.emit(priced, {})
        with pytest.raises(DefinitionError, match="expected an idempotency key"):
            provider.emit(priced, {"id": 5})


async def test_another_payload_under_the_key_of_a_job_meets_the_first_with_a_warning(
    make_provider: MakeProvider, logs: list[MutableMapping[str, Any]]
) -> None:
    provider = make_provider()

    @provider.on("price")
    async def price(n: int) -> int:
        return n

    async with provider.worker():
        assert await provider.emit("price", 1, idempotency_key="k") == 1
        assert await provider.emit("price", 2, idempotency_key="k") == 1
    (warning,) = [each for each in logs if "met another payload" in each["event"]]
    assert warning["event_name"] == "price"


async def test_keys_of_two_events_have_nothing_to_do_with_each_other(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("a")(lambda n: f"a{n}")
    provider.on("b")(lambda n: f"b{n}")
    async with provider.worker():
        assert await provider.emit("a", 1, idempotency_key="k") == "a1"
        assert await provider.emit("b", 2, idempotency_key="k") == "b2"


async def test_keys_are_judged_for_each_group(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    seen: list[str] = []

    @provider.on("paid")
    async def answer(n: int) -> int:
        return n

    @provider.on("paid", group="mail")
    async def mail(n: int) -> None:
        seen.append("mail")
        raise ValueError

    async with provider.worker():
        for _ in range(2):
            assert await provider.emit("paid", 1, idempotency_key="k") == 1
            await until(lambda: len(seen) == 1, "the first of the group ran")
        # The group's job failed, so its key is free again.
        assert await provider.emit("paid", 1, idempotency_key="k") == 1
        await until(lambda: len(seen) >= 2, "the group runs again")


async def test_a_fire_and_forget_emission_may_meet_a_job_too(make_provider: MakeProvider) -> None:
    provider = make_provider()
    runs: list[int] = []

    @provider.on("price")
    async def price(n: int) -> None:
        runs.append(n)

    async with provider.worker():
        first = provider.emit("price", 1, idempotency_key="k")
        second = provider.emit("price", 1, idempotency_key="k", reply=False)
        assert await second is None
        await first
        assert second.job_id == first.job_id
    assert runs == [1]


@pytest.mark.parametrize("key", ["a b:{c}*", "ключ", "x" * 512, "%41", "#", "0"])
async def test_any_text_may_be_a_key(make_provider: MakeProvider, key: str) -> None:
    provider = make_provider()
    runs: list[int] = []
    provider.on("price")(runs.append)
    async with provider.worker():
        for n in range(2):
            await provider.emit("price", n, idempotency_key=key)
        await provider.emit("price", 5, idempotency_key="!" + key[:500])
    assert runs == [0, 5]


@pytest.mark.parametrize("by", ["emit", "result"])
async def test_who_is_not_listed_among_a_thousand_waiters_asks_for_the_outcome(
    make_provider: MakeProvider,
    stack: AsyncExitStack,
    admin: Callable[..., Any],
    prefix: str,
    until: Until,
    by: str,
) -> None:
    provider, other = make_provider(), make_provider()
    gate = asyncio.Event()

    @provider.on("price")
    async def price(n: int) -> int:
        await gate.wait()
        return n

    await stack.enter_async_context(provider.worker())
    await stack.enter_async_context(other)
    first = provider.emit("price", 1, idempotency_key="p-1", reply_timeout=None)
    await first.enqueued()
    root = f"{prefix}:2:{{0}}"
    job = f"{root}:job:{first.job_id}"
    admin(*change_record(job, joined=1000))
    admin("SADD", f"{root}:waiters:{first.job_id}", *(f"e{number}" for number in range(1000)))

    async def wait() -> Any:
        if by == "emit":
            return await other.emit("price", 1, idempotency_key="p-1", reply_timeout=None)
        return await other.result(first.job_id, reply_timeout=240)

    waiting = asyncio.create_task(wait())
    await until(lambda: int(read_record(admin, job)["joined"]) > 1000, "it has joined")
    gate.set()
    assert await first == 1
    assert await asyncio.wait_for(waiting, 240) == 1
