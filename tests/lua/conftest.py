"""The scripts on a server of their own: the one that EVENTBUS_TEST_SERVER names, or the embedded one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from groves import Grove
from servers import Server
from shards import Shard

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
def grove(request: pytest.FixtureRequest, shard: Shard) -> Grove:
    """Each test of trees also runs with every call sent twice."""
    return Grove(shard, repeats=request.param == "twice")
