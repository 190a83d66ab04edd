"""Starting and stopping: in any order, twice, at the same time; open emissions get an outcome."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import (
    ConfigError,
    DefinitionError,
    EmitError,
    EventContext,
    EventProvider,
    HandlerError,
    ProviderStopped,
    Retry,
    StoreRefused,
    UsageError,
)
from eventbus.emit import emitter
from eventbus.store.embedded.server import EmbeddedServer
from eventbus.store.store import Store

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Admin = Callable[..., Any]


def _connections(admin: Admin, name: str) -> int:
    return sum(f" name={name}" in line for line in admin("CLIENT", "LIST").splitlines())


async def test_a_provider_starts_again_after_its_stop(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    for n in range(3):
        async with provider.worker():
            assert await provider.emit("ask", n) == n
        async with provider:
            await provider.emit("ask", n, reply=False)
        with pytest.raises(ProviderStopped):
            provider.emit("ask", n)


async def test_before_its_start_and_after_its_stop_it_says_so(make_provider: MakeProvider) -> None:
    provider = make_provider()

    async def refused() -> None:
        with pytest.raises(ProviderStopped, match="cannot emit: the provider is not started"):
            provider.emit("ask")
        with pytest.raises(ProviderStopped):
            provider.emit_many("ask", [1])
        with pytest.raises(ProviderStopped):
            await provider.result("0-a-1")
        with pytest.raises(ProviderStopped):
            await provider.subscribe("ask", lambda n: n)
        with pytest.raises(ProviderStopped):
            await provider.add_group("ask", "g")

    await refused()
    async with provider:
        pass
    await refused()


async def test_stop_flushes_what_was_emitted_and_tells_everybody_who_waits(
    make_provider: MakeProvider, admin: Admin, prefix: str
) -> None:
    provider = make_provider()
    await provider.start()
    emissions = provider.emit_many("ask", range(500))
    waits = [asyncio.create_task(_settled(each)) for each in emissions]
    result = asyncio.create_task(_settled(provider.result(emissions[0].job_id)))
    await asyncio.sleep(0)
    await provider.stop()
    assert {type(each) for each in await asyncio.gather(*waits)} == {ProviderStopped}
    assert isinstance(await result, Exception)
    assert admin("LLEN", f"{prefix}:2:{{0}}:ready:event.ask") == 500
    assert all(each.done() for each in emissions)


async def _settled(waited: Awaitable[Any]) -> Any:
    try:
        return await waited
    except Exception as error:  # noqa: BLE001
        return error


async def test_starts_and_stops_may_be_repeated(make_provider: MakeProvider, admin: Admin) -> None:
    provider = make_provider(name="repeated")
    await provider.stop()
    await provider.start()
    await provider.start()
    count = _connections(admin, "repeated")
    assert 0 < count <= 2
    await provider.stop()
    await provider.stop()


async def test_the_last_word_wins_among_starts_and_stops_at_once(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    rng = random.Random(5)
    for _ in range(10):
        words = [rng.choice([provider.start, provider.stop]) for _ in range(6)]
        await asyncio.gather(*(word() for word in words))
        assert (provider._life.loop is not None) == (words[-1] == provider.start)
    await provider.start()
    await provider.emit("ask", 1, reply=False)
    await provider.stop()


async def test_a_start_that_was_refused_may_be_tried_again(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise StoreRefused("not today", code="NO")

    provider = make_provider()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "start", refuse)
        for _ in range(2):
            with pytest.raises(StoreRefused, match="not today"):
                await provider.start()
        await provider.stop()
    async with provider:
        await provider.emit("ask", 1, reply=False)


async def test_a_cancelled_start_leaves_nothing(make_provider: MakeProvider) -> None:
    provider = make_provider()
    for steps in range(12):
        task = asyncio.create_task(provider.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await provider.stop()
        assert provider._life.loop is None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start and stop wait less long for a server."""
    monkeypatch.setattr(emitter, "_START_PATIENCE", 0.2)
    monkeypatch.setattr(emitter, "_STOP_PATIENCE", 0.2)


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_is_not_there_is_an_error_of_the_emission_within_its_own_deadline(
    make_provider: MakeProvider, unused_tcp_port: int
) -> None:
    provider = make_provider(url=f"redis://127.0.0.1:{unused_tcp_port}", reply_timeout="1 hour")
    async with provider:
        emission = provider.emit("ask", 1, reply_timeout=0.2)
        patient = provider.emit("ask", 1)
        with pytest.raises(EmitError, match=f"ask was not enqueued: .*127.0.0.1:{unused_tcp_port}"):
            await emission
        with pytest.raises(EmitError) as caught:
            await emission.enqueued()
        assert caught.value.enqueued is False
        assert not patient.done()
    with pytest.raises((ProviderStopped, EmitError)):
        await patient


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_comes_later_gets_what_was_emitted_before(
    make_provider: MakeProvider, server_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "later.sock"
    provider = make_provider(url=f"unix://{path}")
    provider.on("ask")(lambda n: n)
    async with provider:
        emission = provider.emit("ask", 1)
        path.symlink_to(server_url.removeprefix("unix://"))
        async with provider.worker():
            assert await emission == 1


async def test_connections_do_not_grow_with_event_types(
    make_provider: MakeProvider, admin: Admin, until: Until
) -> None:
    provider = make_provider(name="flat")
    provider.on("e0")(lambda n: n)
    async with provider.worker():
        assert await provider.emit("e0", 1) == 1
        await until(
            lambda: _connections(admin, "flat-wake") and _connections(admin, "flat-lease"), "all are made"
        )
        one = _connections(admin, "flat")
    for n in range(1, 200):
        provider.on(f"e{n}")(lambda n: n)
    async with provider.worker():
        emissions = [provider.emit(f"e{n}", n) for n in range(200)]
        assert [await each for each in emissions] == list(range(200))
        await until(
            lambda: _connections(admin, "flat-wake") and _connections(admin, "flat-lease"), "all are made"
        )
        await until(
            lambda: _connections(admin, "flat") <= one, "the server has closed those of the first start"
        )
        many = _connections(admin, "flat")
    assert 0 < one == many <= 4


async def test_a_worker_stops_with_its_block_and_its_provider_with_the_outer_one(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider:
        async with provider.worker():
            with pytest.raises(DefinitionError, match="runs in this process already"):
                async with provider.worker():
                    pass
            assert await provider.emit("ask", 1) == 1
        await provider.emit("ask", 2, reply=False)
        async with provider.worker():
            assert await provider.emit("ask", 3) == 3


async def test_a_worker_without_handlers_or_without_a_match_is_refused(make_provider: MakeProvider) -> None:
    provider = make_provider()
    with pytest.raises(ConfigError, match="has no handlers"):
        async with provider.worker():
            pass
    provider.on("order.placed", group="mail")(lambda n: n)
    with pytest.raises(ConfigError, match=r"no handler matches queues x\*; there are: order.placed@mail"):
        async with provider.worker(queues=["x*"]):
            pass


async def test_a_handler_at_work_ends_before_the_stop_and_its_emitter_hears_it(
    make_provider: MakeProvider,
) -> None:
    provider, emitter = make_provider(), make_provider()
    started, go = asyncio.Event(), asyncio.Event()

    @provider.on("ask")
    async def ask(n: int, ctx: EventContext) -> int:
        started.set()
        await go.wait()
        await ctx.emit("other", n, reply=False)  # a handler that ends may still emit
        return n

    await provider.start()
    async with emitter:
        async with provider.worker():
            emission = emitter.emit("ask", 1)
            await started.wait()
            stopping = asyncio.create_task(provider.stop())
            await asyncio.sleep(0)
            go.set()
            await stopping
        assert await emission == 1


async def test_another_event_loop_is_refused_while_it_runs_in_this_one(make_provider: MakeProvider) -> None:
    provider = make_provider()
    caught: list[BaseException] = []

    async def use() -> None:
        for call in (provider.start, provider.stop):
            try:
                await call()
            except UsageError as error:
                caught.append(error)

    async with provider:
        thread = threading.Thread(target=asyncio.run, args=(use(),))
        thread.start()
        await asyncio.to_thread(thread.join)
    assert ["another event loop" in str(each) for each in caught] == [True, True]


async def test_one_provider_may_be_used_by_one_event_loop_after_another(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)

    async def use(n: int) -> int:
        async with provider.worker():
            await asyncio.gather(provider.start(), provider.start())
            return await provider.emit("ask", n)

    def run() -> list[int]:
        return [asyncio.run(use(n)) for n in range(2)]

    assert await asyncio.to_thread(run) == [0, 1]


async def test_a_worker_that_the_server_refuses_says_so_at_its_start(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise StoreRefused("no rights", code="NOPERM")

    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "announce", refuse)
            with pytest.raises(StoreRefused, match="no rights"):
                async with provider.worker():
                    pass
            for _ in range(2):  # it may be tried again
                with pytest.raises(StoreRefused, match="no rights"):
                    await provider.subscribe("other", lambda n: n)
        await provider.subscribe("third", lambda n: n)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "announce", refuse)
            with pytest.raises(StoreRefused, match="no rights"):
                await provider.subscribe("other", lambda n: n)
        await provider.subscribe("other", lambda n: -n)
        assert await provider.emit("third", 3) == 3
        assert await provider.emit("other", 3) == -3


async def test_a_failed_handler_does_not_stop_the_worker(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=1))

    @provider.on("ask")
    async def ask(n: int) -> int:
        return 1 // n

    async with provider.worker():
        with pytest.raises(HandlerError, match="ZeroDivisionError"):
            await provider.emit("ask", 0)
        assert await provider.emit("ask", 1) == 1


async def test_a_start_that_is_cancelled_leaves_its_embedded_server(
    monkeypatch: pytest.MonkeyPatch, until: Until, tmp_path: Path
) -> None:
    provider = EventProvider(f"embedded:{tmp_path / 'data'}")
    has_started = asyncio.Event()
    left: list[EmbeddedServer] = []
    start, stop = Store.start, EmbeddedServer.stop

    async def hang(self: Store, **given: Any) -> None:
        await start(self, **given)
        has_started.set()
        await asyncio.Event().wait()

    def leave(self: EmbeddedServer) -> None:
        stop(self)
        left.append(self)

    monkeypatch.setattr(Store, "start", hang)
    monkeypatch.setattr(EmbeddedServer, "stop", leave)
    # A scope of anyio cancels again at each await, until it is left.
    async with anyio.create_task_group() as group:
        group.start_soon(provider.start)
        await has_started.wait()
        group.cancel_scope.cancel()
    await until(lambda: left, "it has left the server")


@pytest.mark.slow
async def test_a_subscription_given_up_while_its_jobs_run_does_no_harm(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, other = make_provider(), make_provider()
    provider.on("one")(lambda n: n)
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(n: int) -> int:
        has_begun.set()
        await may_end.wait()
        return n

    async def no_answer(*_: Any) -> None:
        await asyncio.Event().wait()

    async with provider, other:
        emission = other.emit("two", 2)
        await emission.enqueued()
        async with provider.worker():
            with monkeypatch.context() as patch:
                patch.setattr(Store, "poke", no_answer)
                subscribing = asyncio.create_task(provider.subscribe("two", slow))
                await has_begun.wait()
                subscribing.cancel()
                await asyncio.wait([subscribing])
            may_end.set()
            assert await emission == 2
            assert await provider.emit("one", 1) == 1
            await provider.subscribe("two", lambda n: -n)
            assert await other.emit("two", 2) == -2
