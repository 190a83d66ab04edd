"""Opening connections to the server of a URL.

Not a pool, and nothing is retried here: redis-py's retries are off, because only the store knows which
calls may be repeated. What must always hold: no text that leaves this module contains a password.

The test kit has a network of its own: it adds a scheme with `add_scheme`, whose connector makes other wires.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import redis
import redis.asyncio.connection as asyncio_connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from eventbus._version import __version__
from eventbus.errors import ConfigError
from eventbus.model.names import shown
from eventbus.model.url_redaction import redact
from eventbus.runtime.clean_up import run_to_end
from eventbus.store.connection.translation import translate
from eventbus.store.connection.wire import Wire
from eventbus.store.embedded.server import EmbeddedServer, Expected

_SCHEMES = "redis://, rediss://, valkey://, valkeys://, unix://, embedded:PATH, memory:"
_DIALECTS = {"valkey": "redis", "valkeys": "rediss"}


def _introduction() -> dict[str, Any]:
    """Return the options by which `CLIENT LIST` names us and our version beside redis-py, as its `lib-name`.

    Made once: redis-py reads the metadata of its own package for each connection otherwise, which takes a
    millisecond.
    """
    info: Any = getattr(redis, "DriverInfo", None)
    if info is None:  # before redis-py 7.1
        return {"lib_name": f"redis-py(eventbus_v{__version__})"}
    return {"driver_info": info().add_upstream_driver("eventbus", __version__)}


_INTRODUCTION = _introduction()


_LEAVE_WITHIN = 30.0
"""Seconds for leaving an embedded server; its last user writes its data."""


class Connector:
    """Opens connections to the server of one URL, and starts the embedded server if the URL names one."""

    blocks: bool = True
    """Whether the calls of `open_blocking` wait for a server, so that they need a thread."""

    def __init__(self, url: str, *, connect_timeout: float = 5.0, expects: Expected = "nothing") -> None:
        """Parse `url`. Raises ConfigError for a URL that cannot be used.

        `expects`: what must be there already where the URL names an embedded server.
        """
        self._expects: Expected = expects
        self._timeout = connect_timeout
        self._server: EmbeddedServer | None = None
        self._is_closed = False
        self._arguments: dict[str, Any] = {}
        scheme = url.split(":", 1)[0].lower()
        if scheme in ("embedded", "memory"):
            path = url.split(":", 1)[1]
            if scheme == "embedded" and not path:
                raise ConfigError("expected embedded:PATH, got a URL without a path", setting="url")
            self._server = EmbeddedServer(Path(path).expanduser() if scheme == "embedded" else None)
            self.address = url
            return
        self._arguments = _parse(url, scheme)
        self.address: str = _address_of(self._arguments)

    async def start(self) -> None:
        """Start or join the embedded server if the URL names one, and start it again if it has died.

        Raises StoreUnavailable if it `expects` more than is there.
        """
        if self._server is not None and not self._is_closed:
            # Blocks: it waits for locks and processes.
            path = await asyncio.to_thread(self._server.start, expects=self._expects)
            self._arguments = {
                "path": str(path),
                "connection_class": asyncio_connection.UnixDomainSocketConnection,
            }

    async def aclose(self) -> None:
        """Leave the embedded server; its last user process ends it. Idempotent."""
        self._is_closed = True
        if self._server is not None:
            await run_to_end(_leave(self._server), "embedded server", within=_LEAVE_WITHIN)

    async def open(self, *, name: str) -> asyncio_connection.Connection:
        """Open one connection. CLIENT LIST shows `name`.

        Raises StoreUnavailable or StoreRefused.
        """
        await self.start()  # an embedded server may have died since
        arguments = self._common(name)
        kind = arguments.pop("connection_class", asyncio_connection.Connection)
        connection = kind(**arguments, retry=AsyncRetry(NoBackoff(), 0))
        try:
            async with asyncio.timeout(self._timeout):
                await connection.connect()
        except BaseException as error:
            await connection.disconnect(nowait=True)  # also when cancelled; must not wait for the server
            if isinstance(error, Exception):
                cause = TimeoutError(self.silence) if isinstance(error, TimeoutError) else error
                raise translate(cause, address=self.address, sent=False) from error
            raise
        return cast("asyncio_connection.Connection", connection)

    async def open_wire(self, *, name: str, raw: bool, on_end: Callable[[Wire], None]) -> Wire:
        """Open one connection as a wire, which takes it over with `take_over`. Raises as `open`."""
        return Wire(await self.open(name=name), address=self.address, raw=raw, on_end=on_end)

    @property
    def silence(self) -> str:
        """The text of the error when connecting takes too long."""
        if self._arguments.get("connection_class") is asyncio_connection.SSLConnection:
            return "no answer in time; if it does not speak TLS, use redis:// or valkey://"
        return "no answer in time"

    def open_blocking(self, *, name: str, timeout: float) -> redis.Connection:
        """Open one blocking connection, for a thread. `timeout` is how many seconds each answer may take.

        Raises StoreUnavailable or StoreRefused.
        """
        arguments = self._common(name)
        kind = arguments.pop("connection_class", asyncio_connection.Connection)
        blocking: dict[type, type[Any]] = {
            asyncio_connection.Connection: redis.Connection,
            asyncio_connection.SSLConnection: redis.SSLConnection,
            asyncio_connection.UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
        }
        arguments["socket_timeout"] = timeout
        connection = blocking[kind](**arguments, retry=Retry(NoBackoff(), 0))
        try:
            connection.connect()
        except Exception as error:
            connection.disconnect()
            raise translate(error, address=self.address, sent=False) from error
        return cast("redis.Connection", connection)

    def _common(self, name: str) -> dict[str, Any]:
        # After the URL's own options, because these must not change how answers are read.
        return {
            "socket_connect_timeout": self._timeout,
            **self._arguments,
            "protocol": 2,
            "socket_timeout": None,
            "decode_responses": True,
            "encoding": "utf-8",
            "encoding_errors": "surrogateescape",
            "client_name": name,
            **_INTRODUCTION,
        }


_schemes: dict[str, Callable[[str], Connector]] = {}


def add_scheme(scheme: str, make: Callable[[str], Connector]) -> None:
    """Have `make` make the connectors of URLs of a scheme."""
    _schemes[scheme] = make


def make_connector(url: str) -> Connector:
    """Return the connector of a URL. Raises ConfigError for a URL that cannot be used."""
    return _schemes.get(url.partition(":")[0], Connector)(url)


def _parse(url: str, scheme: str) -> dict[str, Any]:
    kind: Literal["Sentinel", "Cluster"] | None = None
    if "sentinel" in scheme:
        kind = "Sentinel"
    elif "cluster" in scheme:
        kind = "Cluster"
    if kind:
        raise ConfigError(
            f"{kind} is not supported yet: {redact(url)}; use the URL of one server", setting="url"
        )
    if scheme not in ("redis", "rediss", "unix", *_DIALECTS):
        raise ConfigError(f"expected a URL of {_SCHEMES}, got: {redact(url)!r}", setting="url")
    plain = _DIALECTS.get(scheme, scheme) + url[len(scheme) :]
    try:
        arguments = dict(asyncio_connection.parse_url(plain))
        urlsplit(plain).port  # noqa: B018  (raises for a port that is no number)
        kind_of = arguments.get("connection_class", asyncio_connection.Connection)
        # Made once only to learn of options that redis-py refuses.
        given = {k: v for k, v in arguments.items() if k != "connection_class"}
        cast("Any", kind_of)(**{**given, **_INTRODUCTION})
    except (ValueError, TypeError, redis.RedisError) as error:
        raise ConfigError(f"cannot use the URL {redact(url)!r}: {_why_not(error)}", setting="url") from None
    if scheme != "unix":
        _check_database(url, urlsplit(plain).path.strip("/"), cast("int", arguments.get("db", 0)))
    for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        path = str(arguments.get(option, ""))
        if path and not os.access(path, os.R_OK):
            raise ConfigError(f"cannot read the file of the URL's option {option}: {path!r}", setting="url")
    if scheme == "unix" and not arguments.get("path"):
        raise ConfigError(f"expected unix:///path/to/socket, got: {redact(url)!r}", setting="url")
    return cast("dict[str, Any]", arguments)


def _check_database(url: str, path: str, number: int) -> None:
    """Raise ConfigError for a path that is not a number, which redis-py takes for database 0, and for a
    negative number, which it sends to the server.
    """
    if number >= 0 and (not path or (path.isascii() and path.isdecimal())):
        return
    got = f", got: {shown(path or number)}" if "@" not in path else ""  # "@": part of a password
    raise ConfigError(
        f"cannot use the URL {redact(url)!r}: expected its database to be a number, "
        f"as in redis://host:6379/0{got}",
        setting="url",
    )


def _why_not(error: Exception) -> str:
    """Say what is wrong with a URL. An unknown text of redis-py is left out: it may quote a password."""
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unknown:
        return f"it has an option that is not known, {unknown[1]!r}"
    if str(error).startswith(("Invalid value for", "Invalid SSL Certificate Requirements Flag")):
        return str(error)
    return (
        "expected scheme://user:password@host:port/db with a port from 0 to 65535, "
        "other characters of the password percent-encoded"
    )


def _address_of(arguments: dict[str, Any]) -> str:
    if "path" in arguments:
        return f"unix:{os.fspath(arguments['path'])}"
    return f"{arguments.get('host', 'localhost')}:{arguments.get('port', 6379)}"


async def _leave(server: EmbeddedServer) -> None:
    try:
        await asyncio.to_thread(server.stop)
    except RuntimeError:  # an interpreter that is ending starts no more threads
        server.stop()
