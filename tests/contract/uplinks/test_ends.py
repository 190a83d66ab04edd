"""What one provider does at its start and its stop harms no other of its uplink."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Any

import pytest
import structlog
from drivers.servers import Server
from drivers.virtual import VirtualWorld

from eventbus import EmitError, EventProvider, ProviderStopped, StoreRefused, StoreUnavailable
from eventbus.emit import uplink as module
from eventbus.emit.reply_reader import ReplyReader
from eventbus.emit.uplink import Uplink

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Find = Callable[[EventProvider], Uplink]
Streams = Callable[[], list[str]]
Connections = Callable[[str], Counter[str]]
Until = Callable[..., Awaitable[None]]
Standstill = Callable[[], AbstractContextManager[None]]


class Desk:
    """A worker that answers when it may."""

    def __init__(self, provider: EventProvider) -> None:
        self.go = asyncio.Event()

        @provider.on("ask", concurrency=50)
        async def ask(n: int) -> int:
            await self.go.wait()
            return n


@pytest.fixture
async def desk(make_provider: MakeProvider) -> AsyncIterator[Desk]:
    worker = make_provider(name="desk")
    desk = Desk(worker)
    async with worker.worker():
        yield desk
        desk.go.set()


async def test_a_stop_ends_the_emissions_of_its_provider_alone(
    desk: Desk, make_provider: MakeProvider, streams: Streams
) -> None:
    first, second = make_provider(), make_provider()
    await first.start()
    await second.start()
    mine = [first.emit("ask", n, idempotency_key=f"k{n}") for n in range(3)]
    theirs = [second.emit("ask", n, idempotency_key=f"k{n}") for n in range(5)]
    await asyncio.gather(*(each.enqueued() for each in (*mine, *theirs)))
    await first.stop()
    for each in mine:
        with pytest.raises(ProviderStopped):
            await each
    assert len(streams()) == 2
    desk.go.set()
    assert [await asyncio.wait_for(each, 240) for each in theirs] == list(range(5))
    assert await second.emit("ask", 9) == 9
    await second.stop()
    assert len(streams()) == 1


@pytest.mark.real
async def test_the_provider_that_came_first_may_stop_first(
    desk: Desk, make_provider: MakeProvider, streams: Streams, connections: Connections, uplink: Find
) -> None:
    desk.go.set()
    providers = [make_provider(name="up") for _ in range(4)]
    for provider in providers:
        await provider.start()
    before = uplink(providers[0]).id
    for at, provider in enumerate(providers):
        assert connections("up") == {"up": 1, "up-replies": 1}
        for later in providers[at:]:
            assert await later.emit("ask", at) == at
            assert uplink(later).id == before
        await provider.stop()
    assert connections("up") == {}
    assert len(streams()) == 1
    await providers[0].start()
    assert uplink(providers[0]).id != before
    assert await providers[0].emit("ask", 1) == 1
    await providers[0].stop()


async def test_calls_under_way_end_with_their_provider_and_the_others_are_answered(
    make_provider: MakeProvider, standstill: Standstill, until: Until
) -> None:
    first, second = make_provider(), make_provider()
    await first.start()
    await second.start()
    with standstill():
        calls = [asyncio.create_task(each.inspector.queues.count("ask")) for each in (first, second)]
        await asyncio.sleep(0)
        store = first._life.store  # pyright: ignore[reportPrivateUsage]
        assert store is not None
        await store.aclose()
        with pytest.raises(StoreUnavailable):
            await calls[0]
        assert not calls[1].done()
    assert (await calls[1])["waiting"] == 0
    await second.emit("ask", 1, reply=False)
    await first.stop()
    await second.stop()


async def test_who_looks_for_a_result_when_the_provider_stops_is_told_of_the_stop(
    make_provider: MakeProvider, standstill: Standstill
) -> None:
    provider, other = make_provider(), make_provider()
    await other.start()
    await provider.start()
    with standstill():
        waiting = asyncio.create_task(provider.result("0-unknown-1"))
        await asyncio.sleep(0)
        await provider.stop()
        with pytest.raises(ProviderStopped, match="stopped before the outcome came"):
            await waiting
    await other.stop()


async def test_an_emission_that_cannot_be_sent_in_time_fails_alone(
    desk: Desk, make_provider: MakeProvider, standstill: Standstill
) -> None:
    desk.go.set()
    hasty, patient = make_provider(reply_timeout=0.3), make_provider()
    async with hasty, patient:
        await asyncio.gather(hasty.emit("ask", 0), patient.emit("ask", 0))
        with standstill():
            emissions = [(hasty.emit("ask", n), patient.emit("ask", n)) for n in range(3)]
            for early, _ in emissions:
                with pytest.raises(EmitError) as caught:
                    await early
                assert caught.value.enqueued is None  # it was sent
        assert [await late for _, late in emissions] == [0, 1, 2]


@pytest.mark.real
async def test_a_provider_that_is_refused_at_its_start_leaves_the_others_alone(
    refusing: str, make_provider: MakeProvider
) -> None:
    allowed = make_provider(url=refusing, name="same", allow_eviction=True)
    refused = make_provider(url=refusing, name="same")
    allowed.on("ask")(lambda n: n)
    with pytest.raises(StoreRefused, match="evict"):
        await refused.start()
    async with allowed.worker():
        for n in range(3):
            starts = [asyncio.create_task(refused.start()) for _ in range(2)]
            assert await allowed.emit("ask", n) == n
            for start in starts:
                with pytest.raises(StoreRefused, match="evict"):
                    await start
        assert await allowed.emit("ask", 9) == 9
    assert not module._uplinks._known  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def refusing() -> Iterator[str]:
    server = Server("--maxmemory-policy", "allkeys-lru")
    server.start()
    yield server.url
    server.stop()


@pytest.mark.real
async def test_a_start_that_is_cancelled_anywhere_leaves_the_others_alone(
    desk: Desk, make_provider: MakeProvider, connections: Connections, uplink: Find
) -> None:
    desk.go.set()
    steady, wavering = make_provider(name="up"), make_provider(name="up")
    async with steady:
        for steps in range(15):
            task = asyncio.create_task(wavering.start())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert await steady.emit("ask", steps) == steps
            await wavering.stop()
            assert uplink(steady).users == 1
        assert connections("up") == {"up": 1, "up-replies": 1}


@pytest.mark.real
@pytest.mark.parametrize("seed", range(3))
async def test_starts_and_stops_at_the_same_time_leave_working_providers_and_nothing_else(
    desk: Desk,
    make_provider: MakeProvider,
    streams: Streams,
    connections: Connections,
    uplink: Find,
    seed: int,
) -> None:
    """The last one closes while others start: these have an uplink of their own, or none closes."""
    desk.go.set()
    rng = random.Random(seed)
    providers = [make_provider(name="up") for _ in range(4)]
    for _ in range(25):
        words = [rng.choice([provider.start, provider.stop]) for provider in providers]
        words += [rng.choice([provider.start, provider.stop]) for provider in rng.sample(providers, 2)]
        await asyncio.gather(*(word() for word in words))
        started = [provider for provider in providers if _is_started(provider)]
        emissions = [provider.emit("ask", n) for n, provider in enumerate(started)]
        assert [await asyncio.wait_for(each, 240) for each in emissions] == list(range(len(started)))
        users = {id(uplink(each)): uplink(each).users for each in started}
        assert sum(users.values()) == len(started)
        assert len(streams()) == 1 + len(users)
    await asyncio.gather(*(provider.stop() for provider in providers))
    assert connections("up") == {}
    assert len(streams()) == 1


async def test_nobody_joins_an_uplink_whose_roles_somebody_cancelled(
    desk: Desk, make_provider: MakeProvider, uplink: Find
) -> None:
    desk.go.set()
    first, second = make_provider(), make_provider()
    async with first:
        roles: Any = uplink(first)._roles  # pyright: ignore[reportPrivateUsage]
        roles.cancel()
        await asyncio.wait([roles])
        async with second:
            assert uplink(second) is not uplink(first)
            assert await second.emit("ask", 1) == 1
        await first.emit("ask", 2, reply=False)


def test_an_uplink_of_a_loop_that_was_closed_without_a_stop_is_forgotten(
    make_provider: MakeProvider, uplink: Find
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)

    async def leave() -> int:
        await provider.start()
        await provider.emit("ask", 1, reply=False)
        return id(uplink(provider))

    async def again() -> int:
        async with provider.worker():
            assert await provider.emit("ask", 2) == 2
            assert len(module._uplinks._known) == 1  # pyright: ignore[reportPrivateUsage]
            return id(uplink(provider))

    left = asyncio.run(leave())
    assert asyncio.run(again()) != left
    assert not module._uplinks._known  # pyright: ignore[reportPrivateUsage]
    gc.collect()


async def test_the_reader_carries_no_facts_of_the_provider_that_came_first(
    desk: Desk,
    make_provider: MakeProvider,
    stack: AsyncExitStack,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts: list[dict[str, Any]] = []
    run = ReplyReader.run_timeouts

    async def note(self: ReplyReader) -> None:
        facts.append(structlog.contextvars.get_contextvars())
        await run(self)

    monkeypatch.setattr(ReplyReader, "run_timeouts", note)
    with structlog.contextvars.bound_contextvars(request="of the first"):
        await stack.enter_async_context(make_provider())
        await until(lambda: facts, "the role runs")
    assert facts == [{}]


async def test_an_outage_is_told_once_for_all_providers_also_while_one_starts(
    make_provider: MakeProvider, virtual: VirtualWorld, logs: list[MutableMapping[str, Any]], until: Until
) -> None:
    first, second = (make_provider(name="up") for _ in range(2))
    first.on("ask")(lambda n: n)
    async with first.worker():
        assert await first.emit("ask", 1) == 1
        virtual.take_server_away()
        await second.start()
        emission = second.emit("ask", 2)
        await until(lambda: _count(logs, "server not available, trying again"), "it is told")
        virtual.bring_server_back()
        assert await asyncio.wait_for(emission, 240) == 2
        await until(lambda: _count(logs, "server available again"), "its return is told")
        assert await asyncio.wait_for(first.emit("ask", 3), 240) == 3
        await second.stop()
    assert _count(logs, "server not available, trying again") == 1
    assert _count(logs, "server available again") == 1


def _is_started(provider: EventProvider) -> bool:
    return provider._life.loop is not None  # pyright: ignore[reportPrivateUsage]


def _count(logs: list[MutableMapping[str, Any]], event: str) -> int:
    return [each["event"] for each in logs].count(event)
