"""Groups: each gets every emission once, on its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import DefinitionError, Event, EventProvider, HandlerError, Retry

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_each_group_gets_every_emission_once_and_the_default_one_answers(
    make_provider: MakeProvider, until: Until
) -> None:
    provider, second = make_provider(), make_provider()
    seen: Counter[str] = Counter()
    for number, each in enumerate((provider, second)):
        for group in ("billing", "mail"):

            async def other(n: int, group: str = group) -> str:
                seen[group] += 1
                return "not for the emitter"

            each.on("placed", group=group)(other)

        async def answer(n: int, number: int = number) -> int:
            seen["default"] += 1
            return n

        each.on("placed")(answer)
    async with provider.worker(), second.worker():
        assert [await each for each in provider.emit_many("placed", range(50))] == list(range(50))
        await until(lambda: seen.total() >= 150, "every group has had every emission")
    assert seen == {"default": 50, "billing": 50, "mail": 50}


async def test_an_error_in_another_group_does_not_reach_the_emitter(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    failed: list[int] = []

    @provider.on("placed")
    async def answer(n: int) -> str:
        return "fine"

    @provider.on("placed", group="billing")
    async def bill(n: int) -> None:
        failed.append(n)
        raise ValueError(n)

    async with provider.worker():
        emission = provider.emit("placed", 1)
        assert await emission == "fine"
        await until(lambda: failed, "the other group has failed")
        with pytest.raises(HandlerError, match="ValueError"):
            await provider.result(f"{emission.job_id}@billing")


async def test_a_group_exists_from_add_group_on_before_its_first_worker(make_provider: MakeProvider) -> None:
    emitter, late = make_provider(), make_provider()
    seen: list[int] = []
    everything = asyncio.Event()

    @late.on("placed", group="audit")
    async def audit(n: int) -> None:
        seen.append(n)
        if len(seen) == 2:
            everything.set()

    async with emitter:
        await emitter.emit("placed", 0, reply=False)
        await emitter.add_group("placed", "audit")
        for n in (1, 2):
            await emitter.emit("placed", n, reply=False)
        async with late.worker():
            await asyncio.wait_for(everything.wait(), 5)
    assert seen == [1, 2]


async def test_an_event_without_a_default_group_makes_jobs_for_its_groups_only(
    make_provider: MakeProvider, until: Until, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider()
    noted = Event("noted", payload=int, default=False)
    seen: list[int] = []

    @provider.on(noted, group="log")
    async def log(n: int) -> None:
        seen.append(n)

    async with provider.worker():
        assert await provider.emit(noted, 1) is None  # enqueued: there is nobody who could answer
        assert await provider.emit(noted, 2, reply=True) is None
        await until(lambda: len(seen) == 2, "the group has both")
    assert admin("ZCARD", f"{prefix}:{{0}}:ready:event.noted") == 0


async def test_a_worker_may_serve_some_groups_alone(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    seen: list[str] = []
    provider.on("placed")(lambda n: seen.append("default"))
    provider.on("placed", group="billing")(lambda n: seen.append("billing"))
    async with provider:
        await provider.add_group("placed", "billing")
        async with provider.worker(queues=["placed@b*"]) as worker:
            assert worker.queues == ["event.placed@billing"]
            await provider.emit("placed", 1, reply=False)
            await until(lambda: seen, "the chosen group was served")
    assert seen == ["billing"]


async def test_a_group_name_that_cannot_be_one_is_refused(make_provider: MakeProvider) -> None:
    provider = make_provider()
    with pytest.raises(DefinitionError, match="expected a group name"):
        provider.on("placed", group="a b")(lambda n: None)
    async with provider:
        with pytest.raises(DefinitionError, match="expected a group name"):
            await provider.add_group("placed", "x:{y}")
