"""One embedded server for the whole run; each test has a key prefix of its own."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

import leaks
import pytest
import structlog
from hypothesis import settings

from eventbus import EventProvider
from eventbus.store.connection import Connector
from eventbus.store.embedded import EmbeddedServer
from eventbus.store.store import Store

_numbers = itertools.count(1)

# What CI runs is small, and the same each time. `--hypothesis-profile=long`: a search of minutes, new each time.
settings.register_profile("same", derandomize=True)
settings.load_profile("same")
settings.register_profile("long", max_examples=1000, stateful_step_count=80, deadline=None, derandomize=False)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The URL of a throw-away server that the whole run shares."""
    server = EmbeddedServer(None)
    path = server.start()
    yield f"unix://{path}"
    server.stop()


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test of this run has."""
    return f"t{os.getpid()}-{next(_numbers)}"


@pytest.fixture
async def store(server_url: str, prefix: str) -> AsyncIterator[Store]:
    """A started store on the shared server."""
    store = Store(Connector(server_url), prefix=prefix, name="test")
    await store.start(deadline=None)
    yield store
    await store.aclose()


@pytest.fixture
def make_provider(server_url: str, prefix: str) -> Callable[..., EventProvider]:
    """Make a provider on the shared server, not started; all of one test share its keys."""

    def make(**settings: Any) -> EventProvider:
        settings.setdefault("prefix", prefix)
        return EventProvider(settings.pop("url", server_url), **settings)

    return make


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Contexts that the test enters and that end with it."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def unused_tcp_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged during the test, entries of structlog."""
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
def admin(server_url: str) -> Iterator[Callable[..., Any]]:
    """Commands to the shared server over a connection of the test's own; answers are text."""
    connection: Any = Connector(server_url).open_blocking(name="admin", timeout=10)

    def call(*command: Any) -> Any:
        connection.send_command(*command)
        return connection.read_response()

    yield call
    connection.disconnect()


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Wait until a condition holds; fails with its name after `within` seconds."""

    async def wait_until(condition: Callable[[], Any], what: str, *, within: float = 10.0) -> None:
        end = time.monotonic() + within
        while not condition():
            assert time.monotonic() < end, f"not within {within:g} s: {what}"
            await asyncio.sleep(0.002)

    return wait_until


@pytest.fixture
def planted() -> set[str]:
    """Names of keys that the test itself wrote; the leak check does not judge them."""
    return set()


@pytest.fixture(scope="session")
def watchers() -> Iterator[dict[str, Any]]:
    """The connections of the leak check, one for each shared server."""
    clients: dict[str, Any] = {}
    yield clients
    for client in clients.values():
        client.close()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest, watchers: dict[str, Any]) -> Iterator[None]:
    """Fail a test that leaves something behind (see `leaks`). Set up first, and so looks last."""
    client: Any = None
    if "server_url" in request.fixturenames:
        url = request.getfixturevalue("server_url")
        client = watchers[url] = watchers.get(url) or leaks.connect(url)
    keys = (request.getfixturevalue("prefix"), request.getfixturevalue("planted"))
    watch = leaks.Watch(client)
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("no_task_is_left")
    yield
    assert leaks.wait_gone(watch.find_new) == set(), "left behind"
    if client is not None:
        assert watch.forget_keys(*keys) == [], "keys that nothing will remove"


@pytest.fixture
async def no_task_is_left() -> AsyncIterator[None]:
    """Fail a test whose event loop still runs a task of ours."""
    before = leaks.find_tasks()
    yield
    end = time.monotonic() + 3
    while (left := leaks.find_tasks() - before) and time.monotonic() < end:  # noqa: ASYNC110  (any task)
        await asyncio.sleep(0.002)
    assert left == set(), "left behind"
