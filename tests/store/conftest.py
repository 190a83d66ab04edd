"""What the tests of the store share: a server with a store on it, for tests without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from drivers.servers import WAYS, Server
from models.bench import Bench


@pytest.fixture(params=WAYS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    server = Server()
    server.start()
    with asyncio.Runner() as runner:
        bench = Bench(server.url, runner, request.param)
        yield bench
        bench.close()
    server.stop()
