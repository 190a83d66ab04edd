"""One embedded server for the whole run; each test has a key prefix of its own."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog

import eventbus
from eventbus import EventProvider
from eventbus.store.connection import Connector
from eventbus.store.embedded import EmbeddedServer
from eventbus.store.store import Store

_numbers = itertools.count(1)


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
async def leak_check(admin: Callable[..., Any]) -> AsyncIterator[None]:
    """After the test nothing of ours is left: no task, no thread, no connection."""
    before = _leftovers(admin)
    yield
    end = time.monotonic() + 3
    while (left := _leftovers(admin) - before) and time.monotonic() < end:  # noqa: ASYNC110  (in the server)
        await asyncio.sleep(0.005)
    assert left == set()


def _leftovers(admin: Callable[..., Any]) -> set[str]:
    facts = [
        dict(part.split("=", 1) for part in line.split(" ")) for line in admin("CLIENT", "LIST").splitlines()
    ]
    clients = {f"connection {each['id']} {each['name']}" for each in facts}
    threads = {
        f"thread {each.ident} {each.name}"
        for each in threading.enumerate()
        if each.name.startswith("eventbus")
    }
    return clients | threads | {f"task {each}" for each in asyncio.all_tasks() if _is_ours(each)}


def _is_ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and Path(code.co_filename).is_relative_to(Path(eventbus.__file__).parent)
