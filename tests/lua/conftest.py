"""The scripts on a server of their own: the one that EVENTBUS_TEST_SERVER names, or the embedded one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from drivers.lone_roots import WAYS as ROOT_WAYS
from drivers.lone_roots import Way
from drivers.servers import WAYS, Server
from drivers.shards import Shard
from drivers.tree_driver import TreeDriver

from eventbus.store.connection.connector import Connector
from eventbus.store.store import Store


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    server = Server()
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(params=WAYS)
def scripting(request: pytest.FixtureRequest) -> Any:
    """How the server runs the scripts of a test: each test runs in all ways, for all do the same."""
    return request.param


@pytest.fixture
async def store(server_url: str, prefix: str, scripting: Any) -> AsyncIterator[Store]:
    store = Store(Connector(server_url), prefix=prefix, name="test", scripting=scripting)
    await store.start(deadline=None)
    yield store
    await store.aclose()


@pytest.fixture
def shard(store: Store) -> Shard:
    return Shard(store)


@pytest.fixture(params=["once", "twice"])
def driver(request: pytest.FixtureRequest, shard: Shard) -> TreeDriver:
    """Each test of trees also runs with every call sent twice."""
    return TreeDriver(shard, repeats=request.param == "twice")


@pytest.fixture(params=ROOT_WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """How a test adds a root that has no members: it sees no difference."""
    return request.param
