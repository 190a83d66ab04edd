"""The server of a test process: a real one, asked from inside the event loop, one batch at a time.

So nothing is ever under way outside of the loop while time could move.
"""

from __future__ import annotations

import os
import socket
from typing import Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

import hiredis

from eventbus.errors import EventBusError, UsageError
from eventbus.store.connection.wire import Refusal
from eventbus.store.embedded.server import EmbeddedServer

_NOTHING = object()
_URL = "EVENTBUS_TEST_URL"
_NAME = "eventbus-test-kit"
"""The name of the connections to a server that was given."""
_pack = cast("Any", hiredis).pack_command


class TestServer:
    """One private server, which ends with this process."""

    __test__ = False
    _one: TestServer | None = None
    _pid = 0

    def __init__(self, address: str | tuple[str, int]) -> None:
        """Connect to a server's socket, or host and port. Raises OSError."""
        self.address = address
        self._sockets: dict[bool, socket.socket] = {}
        self._readers: dict[bool, Any] = {}
        for raw in (False, True):
            if isinstance(address, str):
                sock = socket.socket(socket.AF_UNIX)
                sock.connect(address)
            else:
                sock = socket.create_connection(address)
            text: dict[str, Any] = {} if raw else {"encoding": "utf-8", "errors": "surrogateescape"}
            self._sockets[raw] = sock
            self._readers[raw] = cast("Any", hiredis).Reader(
                replyError=Refusal, notEnoughData=_NOTHING, **text
            )
        self.loaded: str = ""
        """The library that it has."""
        self.embedded: EmbeddedServer | None = None
        """What was started for the tests."""

    @classmethod
    def get(cls) -> TestServer:
        """Return the server of this process; start one, or take that of `EVENTBUS_TEST_URL`, at the first
        call.

        Raises UsageError if there is none to start, or the given one holds keys.
        """
        if cls._one is None or cls._pid != os.getpid():
            url = os.environ.get(_URL, "")
            cls._one, cls._pid = (_join(url) if url else _start()), os.getpid()
        return cls._one

    def run(self, commands: list[tuple[Any, ...]], *, raw: bool = False) -> list[Any]:
        """Carry out commands and return their replies; a `Refusal` for each that it refused."""
        sock, reader = self._sockets[raw], self._readers[raw]
        sock.sendall(b"".join(map(_pack, commands)))
        replies: list[Any] = []
        while True:
            while (reply := reader.gets()) is not _NOTHING:
                replies.append(reply)
            if len(replies) == len(commands):
                return replies
            data = sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the server of the tests has ended")
            reader.feed(data)

    def enter(self, database: int, login: SplitResult) -> None:
        """Choose a database, with the user and password of a URL, on each connection. Raises UsageError."""
        commands: list[tuple[Any, ...]] = [("SELECT", database)]
        if login.password:
            commands.insert(0, ("AUTH", unquote(login.username or "default"), unquote(login.password)))
        for raw in self._sockets:
            for command, reply in zip(commands, self.run(commands, raw=raw), strict=True):
                if isinstance(reply, Refusal):
                    raise UsageError(
                        f"the server of {_URL} refuses {command[0]} "
                        f"({'database ' + str(database) if command[0] == 'SELECT' else 'the password'}): "
                        f"{reply.line}"
                    )

    def close(self) -> None:
        """Leave the server, and end it if it was started for the tests. Idempotent."""
        if TestServer._one is self:
            TestServer._one = None
        for sock in self._sockets.values():
            sock.close()
        if self.embedded is not None:
            self.embedded.stop()
            self.embedded = None

    def clean(self) -> None:
        """Remove all keys."""
        self.run([("FLUSHDB", "SYNC")])


def _start() -> TestServer:
    embedded = EmbeddedServer(None)
    try:
        path = embedded.start()  # ends with this process
    except EventBusError as error:
        raise UsageError(
            f"no server for the tests: {error}; or start an empty one and name it, "
            f"as in {_URL}=redis://127.0.0.1:6390/0"
        ) from error
    server = TestServer(str(path))
    server.embedded = embedded
    return server


def _join(url: str) -> TestServer:
    parts = urlsplit(url)
    database = parts.path.strip("/") if parts.scheme == "redis" else ""
    if parts.scheme not in ("redis", "unix") or not (database or "0").isdecimal():
        raise UsageError(
            f"expected {_URL} to be a URL such as redis://127.0.0.1:6390/0 or unix:///run/redis.sock, "
            f"got: {url}"
        )
    is_path = parts.scheme == "unix"
    try:
        server = TestServer(
            unquote(parts.path) if is_path else (parts.hostname or "127.0.0.1", parts.port or 6379)
        )
    except OSError as error:
        raise UsageError(f"no server at {_URL}={url}: {error}; start an empty one there") from error
    # Each process of xdist has a database of its own.
    number = int(database or 0) + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    try:
        server.enter(number, parts)
        (count,) = server.run([("DBSIZE",)])
        (clients,) = server.run([("CLIENT", "LIST")])
        if _is_used(str(clients), number):
            raise UsageError(
                f"{_URL} names a server whose database {number} another test process uses; give each a "
                "database, or a server, of its own"
            )
        if count:
            raise UsageError(
                f"{_URL} names a server that holds {count} keys; the test kit removes all keys before each "
                f"test, so it takes an empty server only. If a test that was killed has left them, empty it: "
                f"redis-cli -n {number} FLUSHDB"
            )
        server.run([("CLIENT", "SETNAME", _NAME)])
    except UsageError:
        server.close()
        raise
    return server


def _is_used(clients: str, number: int) -> bool:
    return any(f" name={_NAME} " in line and f" db={number} " in line for line in clients.splitlines())
