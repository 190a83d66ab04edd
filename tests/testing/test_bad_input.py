"""What a bus refuses, with words that say what to do; and work outside of the event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
import uvloop

from eventbus import ConfigError, EventProvider, UsageError
from eventbus.store.connection.connector import Connector
from eventbus.store.embedded.server import EmbeddedServer
from eventbus.testing import TestBus
from eventbus.testing.server import TestServer

provider = EventProvider(name="shop")


@provider.on("remind")
async def remind(name: str) -> str:
    return f"reminded {name}"


@provider.on("blocking")
def block(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


@pytest.mark.parametrize("duration", [-1, "-1s", timedelta(seconds=-1)])
async def test_time_does_not_go_back(duration: Any) -> None:
    async with TestBus(provider) as bus:
        for call in (bus.advance, bus.server_away):
            with pytest.raises(UsageError, match="duration"):
                await call(duration)


@pytest.mark.parametrize("duration", ["soon", None, float("nan")])
async def test_what_is_no_duration_is_refused(duration: Any) -> None:
    async with TestBus(provider) as bus:
        with pytest.raises(UsageError, match="duration"):
            await bus.advance(duration)


def test_a_start_without_a_time_zone_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected start to be .* with a time zone"):
        TestBus(provider, start=datetime(2030, 1, 1))


def test_a_bus_needs_a_provider_and_a_lease() -> None:
    with pytest.raises(UsageError, match="expected a provider"):
        TestBus()
    with pytest.raises(UsageError, match="expected lease to be seconds"):
        TestBus(provider, lease="soon")


async def test_a_provider_that_runs_is_refused_and_left_as_it_is(make_provider: Any) -> None:
    running: EventProvider = make_provider()
    async with running:
        with pytest.raises(UsageError, match="runs already; the bus starts it, so enter the bus first"):
            async with TestBus(running):
                raise AssertionError
        await running.inspector.queues.list()
    async with TestBus(provider) as bus:
        with pytest.raises(UsageError, match="runs already"):
            await bus.adopt(provider)
        assert await provider.emit("remind", "ada") == "reminded ada"


async def test_a_second_bus_in_one_loop_is_refused() -> None:
    other = EventProvider(name="other")
    async with TestBus(provider) as bus:
        with pytest.raises(UsageError, match="open in this event loop already"):
            async with TestBus(other):
                raise AssertionError
        with pytest.raises(UsageError, match="entered already"):
            await bus.__aenter__()
        assert await provider.emit("remind", "ada") == "reminded ada"


async def test_a_bus_that_is_not_entered_says_so() -> None:
    bus = TestBus(provider)
    for call in (bus.settle, lambda: bus.advance("1s"), bus.drain, lambda: bus.keep("remind")):
        with pytest.raises(UsageError, match="the bus is not entered"):
            await call()
    with pytest.raises(UsageError, match="the bus is not entered"):
        bus.fail("remind")


def test_uvloop_is_refused_with_a_remedy() -> None:
    async def enter() -> None:
        async with TestBus(provider):
            raise AssertionError

    loop = uvloop.new_event_loop()
    try:
        with pytest.raises(UsageError, match=r"got: uvloop\.Loop; run the test without uvloop"):
            loop.run_until_complete(enter())
    finally:
        loop.close()


async def test_a_start_that_fails_leaves_nothing_behind() -> None:
    bad = EventProvider(name="bad")

    @bad.on("x")
    async def handle(_: Any) -> None: ...

    @bad.lifespan
    async def broken() -> AsyncGenerator[None]:
        if bad.settings.name == "bad":
            raise ConnectionError("the database is away")
        yield

    kept = (list(provider._life.middleware), provider._life.make_processes)
    with pytest.raises(ConnectionError, match="the database is away"):
        async with TestBus(provider, bad):
            raise AssertionError
    assert kept == (provider._life.middleware, provider._life.make_processes)
    assert provider._life.emitter is bad._life.emitter is None
    async with TestBus(provider):
        assert await provider.emit("remind", "ada") == "reminded ada"


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has entered no bus yet."""
    monkeypatch.setattr(TestServer, "_one", None)
    monkeypatch.delenv("EVENTBUS_TEST_URL", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.fixture
def own_server() -> Iterator[Path]:
    """A server of a user; yields its socket."""
    server = EmbeddedServer(None)
    yield server.start()
    server.stop()


@pytest.mark.usefixtures("no_server")
async def test_without_an_embedded_server_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: EmbeddedServer) -> Path:
        raise ConfigError("install eventbus-workflows[embedded]")

    monkeypatch.setattr(EmbeddedServer, "start", refuse)
    with pytest.raises(UsageError, match=r"EVENTBUS_TEST_URL=redis://127\.0\.0\.1:6390/0"):
        async with TestBus(provider):
            raise AssertionError


@pytest.mark.usefixtures("no_server")
async def test_a_server_of_ones_own_is_named_by_its_url(
    monkeypatch: pytest.MonkeyPatch, own_server: Path
) -> None:
    monkeypatch.setenv("EVENTBUS_TEST_URL", f"unix://{own_server}")
    async with TestBus(provider):
        assert await provider.emit("remind", "ada") == "reminded ada"
        assert _ask(own_server, "DBSIZE") > 0
    TestServer.get().close()
    assert _ask(own_server, "DBSIZE") == 0, "so that the next run finds it empty"
    async with TestBus(provider):
        assert await provider.emit("remind", "ada") == "reminded ada"
    TestServer.get().close()


@pytest.mark.usefixtures("no_server")
async def test_a_server_that_another_test_process_uses_is_refused(
    monkeypatch: pytest.MonkeyPatch, own_server: Path
) -> None:
    monkeypatch.setenv("EVENTBUS_TEST_URL", f"unix://{own_server}")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    first = TestServer.get()
    monkeypatch.setattr(TestServer, "_one", None)  # as in another process
    with pytest.raises(UsageError, match="database 0 another test process uses"):
        TestServer.get()
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    second = TestServer.get()
    first.run([("SET", "key", "a")])
    assert second.run([("GET", "key")]) == [None], "each process of xdist has a database of its own"
    first.clean()
    first.close()
    second.close()


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("rediss://127.0.0.1:1/0", "expected EVENTBUS_TEST_URL to be a URL such as"),
        ("127.0.0.1:1", "expected EVENTBUS_TEST_URL to be a URL such as"),
        ("redis://127.0.0.1:1/x", "expected EVENTBUS_TEST_URL to be a URL such as"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(monkeypatch: pytest.MonkeyPatch, url: str, told: str) -> None:
    monkeypatch.setenv("EVENTBUS_TEST_URL", url)
    with pytest.raises(UsageError, match=told):
        TestServer.get()


@pytest.mark.usefixtures("no_server")
def test_a_database_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, own_server: Path) -> None:
    monkeypatch.setenv("EVENTBUS_TEST_URL", f"unix://{own_server}")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw999")
    with pytest.raises(UsageError, match=r"refuses SELECT \(database 999\)"):
        TestServer.get()


@pytest.mark.usefixtures("no_server")
async def test_a_server_that_holds_keys_is_refused(monkeypatch: pytest.MonkeyPatch, own_server: Path) -> None:
    _ask(own_server, "SET", "of-production", "precious")
    monkeypatch.setenv("EVENTBUS_TEST_URL", f"unix://{own_server}")
    with pytest.raises(UsageError, match=r"holds 1 keys; .* an empty server only"):
        async with TestBus(provider):
            raise AssertionError
    assert _ask(own_server, "GET", "of-production") == "precious"


@pytest.mark.usefixtures("no_server")
async def test_a_server_that_is_not_there_is_told_with_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_TEST_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(UsageError, match=r"EVENTBUS_TEST_URL.*127\.0\.0\.1:1"):
        async with TestBus(provider):
            raise AssertionError


def _ask(path: Path, *command: str) -> Any:
    connection: Any = Connector(f"unix://{path}").open_blocking(name="admin", timeout=10)
    connection.send_command(*command)
    reply = connection.read_response()
    connection.disconnect()
    return reply


async def test_foreign_input_is_waited_for_while_time_is_held() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        async with TestBus(provider) as bus:
            began = bus.now
            later = asyncio.create_task(asyncio.sleep(3600))
            reader, writer = await asyncio.open_connection(sock=ours)
            answering = threading.Timer(0.3, theirs.sendall, [b"rows\n"])  # longer than the patience
            with bus.hold():
                answering.start()
                assert await reader.readline() == b"rows\n"
                assert (bus.now, later.done()) == (began, False)
            answering.join()
            writer.close()
            await writer.wait_closed()
            await later


async def test_foreign_input_that_comes_soon_is_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        async with TestBus(provider) as bus:
            reader, writer = await asyncio.open_connection(sock=ours)
            theirs.sendall(b"rows\n")
            began = bus.now
            assert await reader.readline() == b"rows\n"
            assert bus.now == began
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize("is_inside", [True, False])
async def test_a_worker_that_is_killed_while_its_thread_works_stops_no_time(*, is_inside: bool) -> None:
    """Whoever waits for the thread is dead, and so cannot say that time may go on."""
    shop = EventProvider(name="shop")
    began, may_end, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    runs: list[int] = []

    def work() -> str:
        runs.append(1)
        loop.call_soon_threadsafe(began.set)
        may_end.wait()
        return "done"

    if is_inside:

        @shop.on("work")
        async def work_inside(_: Any) -> str:
            return await anyio.to_thread.run_sync(work)
    else:

        @shop.on("work")
        def work_outside(_: Any) -> str:
            return work()

    async with TestBus(shop) as bus:
        emission = shop.emit("work", reply_timeout=0)
        await began.wait()
        bus.kill_worker()
        may_end.set()
        await bus.start_worker()
        assert await emission == "done"
        await bus.advance("1 day")
    assert runs == [1, 1]
