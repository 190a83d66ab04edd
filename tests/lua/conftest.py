"""The scripts on a server of their own: the one that EVENTBUS_TEST_SERVER names, or the embedded one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from drivers.servers import Server
from drivers.shards import Shard
from drivers.tree_driver import TreeDriver

from eventbus.store.store import Store


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    server = Server()
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def shard(store: Store) -> Shard:
    return Shard(store)


@pytest.fixture(params=["once", "twice"])
def driver(request: pytest.FixtureRequest, shard: Shard) -> TreeDriver:
    """Each test of trees also runs with every call sent twice."""
    return TreeDriver(shard, repeats=request.param == "twice")
