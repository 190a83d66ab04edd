"""Groups: each group gets every emission once, independently of the others."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import (
    DefinitionError,
    Event,
    EventProvider,
    HandlerError,
    JobCancelled,
    QueueFull,
    Retry,
    StoreUnavailable,
    UsageError,
)
from eventbus.store.calls.group_store import GroupStore

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
            await asyncio.wait_for(everything.wait(), 240)
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
        assert await provider.emit(noted, 1) is None  # enqueued; no worker could answer
        assert await provider.emit(noted, 2, reply=True) is None
        await until(lambda: len(seen) == 2, "the group has both")
    assert admin("LLEN", f"{prefix}:2:{{0}}:ready:event.noted") == 0


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


async def test_groups_are_listed_with_what_waits_and_who_serves_them(make_provider: MakeProvider) -> None:
    provider, emitter = make_provider(), make_provider()
    placed = Event("placed", payload=int)

    @provider.on(placed, group="billing")
    async def bill(n: int) -> None: ...

    async with emitter:
        assert await emitter.inspector.queues.groups() == []
        await emitter.add_group(placed, "retired")
        await emitter.add_group("other", "log")
        async with provider.worker():
            await emitter.emit(placed, 1, reply=False)
            billing, retired = await emitter.inspector.queues.groups(placed)
            assert (billing.event, billing.name, billing.queue) == (
                "placed",
                "billing",
                "event.placed@billing",
            )
            assert (billing.workers, retired.workers, retired.waiting) == (1, 0, 1)
            now = time.time() * 1000
            assert abs(billing.served_ms - now) < 60_000 > abs(retired.oldest_ms - now)
            assert retired.served_ms == 0
        billing, retired = await emitter.inspector.queues.groups("placed")
        assert (billing.workers, billing.served_ms) == (0, 0)
        assert [each.name for each in await emitter.inspector.queues.groups()] == [
            "log",
            "billing",
            "retired",
        ]


async def test_a_group_that_was_removed_gets_nothing_and_its_jobs_end_as_cancelled(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    provider.on("placed")(lambda n: n)
    async with provider:
        await provider.add_group("placed", "retired")
        emissions = provider.emit_many("placed", range(250), reply=False)
        late = provider.emit("placed", 1, reply=False, delay="1 hour")
        await late
        for each in emissions:
            await each
        waiting = asyncio.create_task(provider.result(f"{late.job_id}@retired"))
        assert await provider.remove_group("placed", "retired") == 251
        with pytest.raises(JobCancelled, match="its group 'retired' was removed"):
            await waiting
        with pytest.raises(JobCancelled):
            await provider.result(f"{emissions[0].job_id}@retired")
        assert await provider.remove_group("placed", "retired") == 0, "an unknown group has no jobs"
        assert await provider.inspector.queues.groups("placed") == []
        async with provider.worker():
            assert await provider.emit("placed", 2) == 2
        assert (await provider.inspector.queues.count("placed@retired"))["waiting"] == 0


async def test_a_removal_whose_caller_ended_is_finished_by_the_next(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    remove = GroupStore.remove
    calls: list[int] = []

    async def die(self: GroupStore, *words: Any, **given: Any) -> Any:
        if calls:
            raise StoreUnavailable("gone")
        calls.append(1)
        return await remove(self, *words, **given)

    async with provider:
        await provider.add_group("placed", "retired")
        for each in provider.emit_many("placed", range(250), reply=False):
            await each
        with monkeypatch.context() as patch:
            patch.setattr(GroupStore, "remove", die)
            with pytest.raises(StoreUnavailable):
                await provider.remove_group("placed", "retired")
        assert await provider.inspector.queues.groups("placed") == []
        assert await provider.remove_group("placed", "retired") == 150


async def test_a_group_that_workers_serve_is_not_removed_unless_forced(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("placed", group="billing")
    async def bill(n: int) -> None: ...

    async with provider:
        async with provider.worker():
            with pytest.raises(UsageError, match="a worker serves it and would make it again within 5 s"):
                await provider.remove_group("placed", "billing")
            assert len(await provider.inspector.queues.groups("placed")) == 1
            assert await provider.remove_group("placed", "billing", force=True) == 0
            assert await provider.inspector.queues.groups("placed") == []
        await provider.add_group("placed", "billing")
        assert await provider.remove_group("placed", "billing", call_timeout="2s") == 0, "its worker has left"


async def test_the_default_group_is_the_event_itself(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider()
    provider.on("placed")(lambda n: n)
    async with provider, provider.worker():
        await provider.add_group("placed", "default")
        assert await provider.emit("placed", 1) == 1
        assert admin("EXISTS", f"{prefix}:2:{{0}}:ready:event.placed@default") == 0
        with pytest.raises(UsageError, match="is the event itself and cannot be removed"):
            await provider.remove_group("placed", "default", force=True)


async def test_a_refusal_names_the_group_that_is_full_and_the_way_out(make_provider: MakeProvider) -> None:
    provider = make_provider(max_waiting=3)
    provider.on("placed")(lambda n: n)
    async with provider, provider.worker():
        await provider.add_group("placed", "retired")
        for n in range(3):
            assert await provider.emit("placed", n) == n
        with pytest.raises(QueueFull) as caught:
            await provider.emit("placed", 3)
        assert caught.value.queue == "event.placed@retired"
        assert str(caught.value) == (
            "queue 'event.placed@retired' holds its max_waiting of 3 jobs, and no worker serves group "
            "'retired'; start one, or remove the group: provider.remove_group('placed', 'retired')"
        )
        await provider.remove_group("placed", "retired")
        assert await provider.emit("placed", 4) == 4


@pytest.mark.parametrize("group", ["default", "billing"])
async def test_a_full_queue_that_is_served_is_told_as_such(make_provider: MakeProvider, group: str) -> None:
    provider = make_provider(max_waiting=1)
    placed = Event("placed", payload=int, default=group == "default")
    runs, go = asyncio.Event(), asyncio.Event()

    @provider.on(placed, group=group, concurrency=1)
    async def hold(n: int) -> None:
        runs.set()
        await go.wait()

    async with provider, provider.worker():
        await provider.emit(placed, 0, reply=False)
        await runs.wait()
        await provider.emit(placed, 1, reply=False)
        with pytest.raises(QueueFull) as caught:
            await provider.emit(placed, 2, reply=False)
        go.set()
    suffix, whom = ("", "") if group == "default" else ("@billing", " for group 'billing'")
    assert str(caught.value) == (
        f"queue 'event.placed{suffix}' holds its max_waiting of 1 jobs; "
        f"emit again later, or start more workers{whom}"
    )
