"""What other workers know of a worker: that it runs, what it serves, and that it has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider, StoreRefused
from eventbus.engine import presence
from eventbus.store.calls.presence_store import PresenceStore
from eventbus.store.store import Store

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Count = Callable[[str], Awaitable[int]]


@pytest.fixture
async def count(store: Store) -> Count:
    """How many live workers a queue has."""

    async def count(queue: str) -> int:
        (look,) = await store.presence.survey([queue])
        return look.workers

    return count


async def test_a_worker_is_known_once_it_is_ready_and_until_its_stop_begins(
    make_provider: MakeProvider, count: Count, until: Until
) -> None:
    provider, second = make_provider(), make_provider()
    began, go = asyncio.Event(), asyncio.Event()

    @provider.on("ask")
    async def ask(_: Any) -> None:
        began.set()
        await go.wait()

    second.on("ask", group="other")(lambda n: None)
    second.on("ask")(lambda n: None)
    async with provider, second:
        async with provider.worker() as worker:
            assert await count("event.ask") == 1
            await provider.emit("ask", reply=False)
            await began.wait()
            async with second.worker():
                assert (await count("event.ask"), await count("event.ask@other")) == (2, 1)
            assert (await count("event.ask"), await count("event.ask@other")) == (1, 0)
            worker.request_stop()
            while await count("event.ask"):  # noqa: ASYNC110  (of the server)
                await asyncio.sleep(0.002)
            assert worker.health().running == 1, "it still drains"
            go.set()
        assert await count("event.ask") == 0


async def test_a_worker_that_serves_more_is_known_in_its_new_pool_alone(
    make_provider: MakeProvider, count: Count, store: Store, admin: Callable[..., Any]
) -> None:
    provider = make_provider()
    async with provider:
        await provider.subscribe("one", lambda n: n)
        before = admin("ZRANGE", store.keys.of("pools", "event.one"), 0, -1)
        await provider.subscribe("two", lambda n: n)
        after = admin("ZRANGE", store.keys.of("pools", "event.one"), 0, -1)
        assert (len(before), len(after)) == (1, 1)
        assert before != after == admin("ZRANGE", store.keys.of("pools", "event.two"), 0, -1)
        assert (await count("event.one"), await count("event.two")) == (1, 1)
    assert (await count("event.one"), await count("event.two")) == (0, 0)
    assert admin("EXISTS", store.keys.of("serving", before[0]), store.keys.of("serving", after[0])) == 0


async def test_a_worker_that_is_stopped_while_it_starts_is_not_known(
    make_provider: MakeProvider, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    announce, announced = Store.announce, asyncio.Event()

    async def hang(self: Store, **given: Any) -> Any:
        await announce(self, **given)
        announced.set()
        await asyncio.Event().wait()  # the answer is lost

    monkeypatch.setattr(Store, "announce", hang)
    async with provider:
        starting = asyncio.create_task(provider.worker().__aenter__())
        await announced.wait()
        assert await count("event.ask") == 1
        await provider.stop()
        with pytest.raises(Exception, match="stopped before it was ready"):
            await starting
    assert await count("event.ask") == 0


async def test_a_worker_that_has_left_announces_itself_no_more(
    make_provider: MakeProvider, count: Count, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_INTERVAL", 0.01)
    provider = make_provider()
    began, go = asyncio.Event(), asyncio.Event()
    calls: list[str] = []
    announce = Store.announce

    async def noting(self: Store, **given: Any) -> Any:
        calls.append(given["worker"])
        return await announce(self, **given)

    monkeypatch.setattr(Store, "announce", noting)

    @provider.on("ask")
    async def ask(_: Any) -> None:
        began.set()
        await go.wait()

    async with provider, provider.worker() as worker:
        await provider.emit("ask", reply=False)
        await began.wait()
        await until(lambda: len(calls) > 2, "it announces itself")
        worker.request_stop()
        while await count("event.ask"):  # noqa: ASYNC110  (of the server)
            await asyncio.sleep(0.002)
        calls.clear()
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, passed.set)
        await passed.wait()
        assert calls == []
        go.set()


async def test_a_word_that_is_refused_does_not_keep_the_stop(
    make_provider: MakeProvider, logs: list[MutableMapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: PresenceStore, *given: Any, **options: Any) -> int:
        raise StoreRefused("no")

    monkeypatch.setattr(PresenceStore, "leave", refuse)
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider.worker():
        assert await provider.emit("ask", 1) == 1
    assert "left without a word" in str([entry["event"] for entry in logs])
