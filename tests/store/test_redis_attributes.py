"""The fence around redis-py's private attributes, through which the wire takes over a connection.

`integration/servers/test_redis_majors.py` runs this file with each major release that pyproject.toml allows.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme
from drivers.fakes import OK, FakeServer

import eventbus.store
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.wire import Wire

_PRIVATE: dict[str, type] = {"_reader": asyncio.StreamReader, "_writer": asyncio.StreamWriter}
"""All that we use of a connection and that redis-py does not promise, with the type that we need."""

_REMEDY = (
    "eventbus/store uses this private attribute to take a connection over from redis-py; find out where this "
    "release keeps it and change eventbus/store for it, or exclude the release in pyproject.toml"
)


@pytest.fixture(params=["tcp", "unix", "tls"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a server that answers everything with OK, for each of redis-py's connection classes."""
    fake = FakeServer(lambda _: OK)
    if request.param == "unix":
        server = await asyncio.start_unix_server(fake._serve, tmp_path / "s")
        url = f"unix://{tmp_path / 's'}"
    elif request.param == "tls":
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        server = await asyncio.start_server(fake._serve, "127.0.0.1", 0, ssl=context)
        url = f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}?ssl_ca_certs={tmp_path / 'ca.pem'}"
    else:
        server = await asyncio.start_server(fake._serve, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield url
    server.close()
    fake.cut()
    await server.wait_closed()


def _said(what: str, found: object) -> str:
    return f"redis-py {redis.__version__}: expected {what}, got: {found!r}; {_REMEDY}"


async def test_an_open_connection_has_its_streams_where_we_take_them(url: str) -> None:
    connection: Any = await Connector(url).open(name="test")
    for name, kind in _PRIVATE.items():
        found = getattr(connection, name, None)
        assert isinstance(found, kind), _said(f"{type(connection).__name__}.{name} to be a {kind}", found)
    transport = connection._writer.transport
    assert isinstance(transport, asyncio.Transport), _said("the transport of `_writer`", transport)
    await connection.disconnect(nowait=True)


async def test_a_connection_whose_streams_we_took_is_closed_to_redis_py(url: str) -> None:
    connection: Any = await Connector(url).open(name="test")
    wire = Wire(connection, address="test", raw=False, on_end=lambda _: None)
    await wire.take_over()
    assert connection.is_connected
    wire.end(ConnectionResetError("by the test"))
    assert not connection.is_connected, _said("a connection without streams to be closed", connection)
    await wire.stay()
    await connection.disconnect(nowait=True)  # there is nothing left to close
    del connection, wire
    gc.collect()  # what redis-py warns of when a connection goes is an error here


async def test_a_channel_works_over_such_a_connection(url: str) -> None:
    channel = Channel(Connector(url), name="test", answer_timeout=5.0)
    assert await asyncio.gather(*(channel.call("SET", "a", n) for n in range(3))) == ["OK"] * 3
    await channel.aclose()


def test_no_other_private_attribute_of_a_connection_is_used() -> None:
    (folder,) = eventbus.store.__path__
    used = {
        node.attr
        for path in Path(folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and ast.unparse(node.value).rpartition(".")[2] in ("connection", "_connection")
    }
    assert used == set(_PRIVATE), "add it to _PRIVATE with its type, so that each redis-py is asked for it"
