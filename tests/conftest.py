"""One embedded server for the whole run; each test has a key prefix of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

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
