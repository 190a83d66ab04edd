"""Emissions while the server is away: what they cost, when they are given up, what comes afterwards."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import Any

import pytest
from drivers.lowlevel import Mine, Reading
from drivers.virtual import VirtualWorld

from eventbus import Emission, EmitError, EventProvider, ProviderStopped
from eventbus.emit import emitter, send_buffer
from eventbus.lowlevel import Member, Tree
from eventbus.model import clock
from eventbus.store.bounds import CALL_ROWS
from eventbus.store.calls.tree_store import TreeStore
from eventbus.store.connection import retrying

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

_KB = "x" * 1000


@pytest.fixture
async def provider(make_provider: MakeProvider, virtual: VirtualWorld) -> AsyncIterator[EventProvider]:
    """A provider that has emitted, and whose server has gone."""
    provider = make_provider()
    async with provider:
        await provider.emit("first", reply=False)
        virtual.take_server_away()
        yield provider


class Calls:
    """Counts the adds of a provider, and the tries of all its calls."""

    def __init__(self, provider: EventProvider) -> None:
        store: Any = provider._life.store  # pyright: ignore[reportPrivateUsage]
        self._add = store.add
        store.add = self._count
        self.sizes: list[int] = []

    def _count(self, emitter: str, queues: Any, rows: Any, **options: Any) -> Any:
        self.sizes.append(len(rows))
        return self._add(emitter, queues, rows, **options)


@pytest.mark.slow
async def test_an_outage_takes_hardly_more_memory_than_what_is_under_way(provider: EventProvider) -> None:
    count = send_buffer.MAX_UNSENT
    gc.collect()
    tracemalloc.start()
    try:
        emissions = [provider.emit("ask", _KB, reply_timeout=4) for _ in range(count)]
        under_way, _ = tracemalloc.get_traced_memory()
        for emission in emissions:  # one after the other, without a task for each
            with pytest.raises(EmitError):
                await emission
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert under_way < 2 * count * len(_KB)
    assert peak < 1.5 * under_way


async def test_all_whose_time_is_over_fail_in_one_go(
    provider: EventProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, now = Calls(provider), clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)  # so that the time of all is over at once
    emissions = [provider.emit("ask", n, reply_timeout=0.3) for n in range(2000)]
    monkeypatch.undo()
    await asyncio.gather(*emissions, return_exceptions=True)
    # The first four calls, and each again for what of it ends a moment later; the others never leave.
    assert len(calls.sizes) <= 8, calls.sizes


async def test_errors_come_when_the_time_is_over_and_those_of_a_batch_in_order(
    provider: EventProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    early: list[float] = []
    began, emissions = clock.monotonic(), list[Any]()
    for number in range(
        1500
    ):  # the last one begins a moment after the first one, however busy the machine is
        monkeypatch.setattr(clock, "monotonic", lambda number=number: began + number * 1e-6)
        emissions.append(provider.emit("ask", number, reply_timeout=0.3))
    monkeypatch.undo()

    async def watch(number: int) -> None:
        with pytest.raises(EmitError, match=r"ask was not enqueued: ") as caught:
            await emissions[number]
        assert caught.value.enqueued is False
        ended.append(number)
        left = began + number * 1e-6 + 0.3 - clock.monotonic()
        early.extend([left] if left > 0 else [])

    await asyncio.gather(*map(watch, range(1500)))
    assert not early
    # Each batch ends together. One that is sent when a call has ended, ends a moment later than others.
    for first in range(0, 1500, CALL_ROWS):
        batch = [number for number in ended if first <= number < first + CALL_ROWS]
        assert batch == sorted(batch)


async def test_what_nobody_awaits_is_logged_once_and_not_for_each_emission(
    provider: EventProvider, logs: list[MutableMapping[str, Any]]
) -> None:
    first = provider.emit("ask", 0, reply=False, reply_timeout=0.05)
    with pytest.raises(EmitError):
        await first
    for number in range(300):
        provider.emit("ask", number, reply_timeout=0.05)
    held = provider.emit("ask", 1, reply_timeout=0.1)
    with pytest.raises(EmitError):
        await held
    await provider.stop()
    told = [each for each in logs if each["event"] == "emission failed and nobody awaited it"]
    assert [each["count"] for each in told] == [1, 299]


async def test_a_later_deadline_goes_on_in_its_place(
    provider: EventProvider, virtual: VirtualWorld, prefix: str
) -> None:
    """The first call is sent again without those that ended; its rest still goes before the other calls."""
    short = [provider.emit("ask", n, reply_timeout=0.1) for n in range(100)]
    others = [provider.emit("ask", n, reply=False) for n in range(100, 1500)]
    assert {type(each) for each in await asyncio.gather(*short, return_exceptions=True)} == {EmitError}
    virtual.bring_server_back()
    await asyncio.gather(*others)
    assert _waiting(virtual, prefix) == [each.job_id for each in others]


async def test_what_was_emitted_into_an_outage_comes_once_and_in_order(
    provider: EventProvider, virtual: VirtualWorld, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "_LAST_PAUSE", 0.1)
    emissions = provider.emit_many("ask", [_KB] * 1500, reply=False)
    store: Any = provider._life.store  # pyright: ignore[reportPrivateUsage]
    while store._caller.repeats < 3:  # noqa: ASYNC110  (each call but the first waits for its turn)
        await asyncio.sleep(0.01)
    virtual.bring_server_back()
    emissions += provider.emit_many("ask", [_KB] * 500, reply=False)
    await asyncio.gather(*emissions)
    assert _waiting(virtual, prefix) == [each.job_id for each in emissions]


async def test_trees_of_an_outage_take_four_calls_and_come_in_order(
    provider: EventProvider, virtual: VirtualWorld, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tree is added in a tick of its own."""
    monkeypatch.setattr(retrying, "_LAST_PAUSE", 0.1)
    calls = _count_trees(monkeypatch)
    mine = Mine(provider)
    trees: list[Emission[Any]] = []
    for number in range(300):
        tree = Tree(f"t{number:03}", "mine", "x", [Member(f"t{number:03}/a", "mine")])
        trees.append(mine.jobs.add(tree, Reading()))
        await asyncio.sleep(0)
    store: Any = provider._life.store  # pyright: ignore[reportPrivateUsage]
    while store._caller.repeats < 3:  # noqa: ASYNC110  (each call but the first waits for its turn)
        await asyncio.sleep(0.01)
    assert len(calls) == 4
    virtual.bring_server_back()
    await asyncio.gather(*[each.enqueued() for each in trees])
    assert sum(calls) == 300
    assert len(calls) < 300  # those whose deadlines are near each other go together
    (key,) = _ask(virtual, "KEYS", f"{prefix}:*:ready:mine")
    assert [job for job in _ask(virtual, "LRANGE", key, 0, -1) if job.endswith("/a")] == [
        f"t{number:03}/a" for number in range(300)
    ]


async def test_trees_that_wait_behind_the_four_calls_end_at_their_own_time(
    provider: EventProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)  # so that there are two deadlines
    mine = Mine(provider)
    trees: list[Emission[Any]] = []
    for number in range(20):
        patience = 0.4 if number % 2 else 0.2  # too far from each other for one call
        tree = Tree(f"t{number}", "mine", "x", [Member(f"t{number}/a", "mine")])
        trees.append(mine.jobs.add(tree, Reading(), call_timeout=patience))
    monkeypatch.undo()
    calls = _count_trees(monkeypatch)
    failed = await asyncio.gather(*[each.enqueued() for each in trees], return_exceptions=True)
    assert [getattr(each, "enqueued", True) for each in failed] == [False] * 20
    assert len(calls) <= 8, calls


async def test_a_stop_ends_the_trees_that_wait(
    provider: EventProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitter, "_STOP_PATIENCE", 0.1)
    mine = Mine(provider)
    trees: list[Emission[Any]] = []
    for number in range(9):
        tree = Tree(f"t{number}", "mine", "x", [Member(f"t{number}/a", "mine")])
        trees.append(mine.jobs.add(tree, Reading()))
        await asyncio.sleep(0)
    waits = asyncio.gather(*[each.enqueued() for each in trees], return_exceptions=True)
    await provider.stop()
    assert {type(each) for each in await waits} <= {EmitError, ProviderStopped}


def _count_trees(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many trees each call had, as far as it came."""
    sizes: list[int] = []
    add = TreeStore.add

    async def note(self: TreeStore, emitter: str, chunks: Any, **given: Any) -> Any:
        sizes.append(len(chunks))
        return await add(self, emitter, chunks, **given)

    monkeypatch.setattr(TreeStore, "add", note)
    return sizes


def _waiting(virtual: VirtualWorld, prefix: str) -> list[str]:
    """Return the jobs of the queue, in the order in which they will be claimed."""
    (key,) = _ask(virtual, "KEYS", f"{prefix}:*:ready:event.ask")
    return _ask(virtual, "LRANGE", key, 0, -1)


def _ask(virtual: VirtualWorld, *command: Any) -> list[str]:
    (answer,) = virtual.network.run([command])
    return answer
