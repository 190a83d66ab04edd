"""A redis-server of our own for each run: on a free loopback port, with a throw-away directory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import redis

MODES = {
    "no AOF": ("--appendonly", "no"),
    # No rewrite in the middle of a measurement: it would take a core, on whichever side it met.
    "AOF everysec": (
        *("--appendonly", "yes", "--appendfsync", "everysec"),
        *("--auto-aof-rewrite-percentage", "0"),
    ),
}
"""The server's persistence: name in the table → arguments of the server."""

_SLOW, _LENGTH = "slowlog-log-slower-than", "slowlog-max-len"
_UNWATCHED = {_SLOW: 10_000, _LENGTH: 128}
_WATCHED = {_SLOW: 200, _LENGTH: 100_000}
_START_SECONDS = 10.0
_STOP_SECONDS = 10.0
_LOOPBACK = "127.0.0.1"


class Calls:
    """What a watched server's log of slow calls had; `longest_ms` is there after the block."""

    def __init__(self) -> None:
        self.longest_ms = 0.0


class Server:
    """A running server: its URL, and a client for what the harness asks between rounds."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
            url, socket_timeout=None
        )

    def wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Return when the server answers; raises RuntimeError if it ends, or not in time."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._client.ping()  # pyright: ignore[reportUnknownMemberType]
            except redis.ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not start; exit code: {process.poll()}") from None
                time.sleep(0.02)
            else:
                return

    def empty(self) -> None:
        """Remove all keys."""
        self._client.flushall()  # pyright: ignore[reportUnknownMemberType]

    def used_memory(self) -> int:
        """Return the bytes that the server's data take."""
        return int(self._client.info("memory")["used_memory"])  # pyright: ignore[reportUnknownMemberType]

    @contextmanager
    def watched(self) -> Generator[Calls]:
        """Note the longest call that clients make in the block; below 0.2 ms it counts as that.

        It is time on the clock, as SLOWLOG has it: a busy machine makes calls longer.
        """
        calls = Calls()
        self._set(_WATCHED)
        self._client.slowlog_reset()  # pyright: ignore[reportUnknownMemberType]
        try:
            yield calls
            found = (  # pyright: ignore[reportUnknownVariableType]
                self._client.slowlog_get(_WATCHED[_LENGTH])  # pyright: ignore[reportUnknownMemberType]
            )
            calls.longest_ms = max([_WATCHED[_SLOW], *(entry["duration"] for entry in found)]) / 1000
        finally:
            self._set(_UNWATCHED)

    def _set(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            self._client.config_set(name, value)  # pyright: ignore[reportUnknownMemberType]

    def version(self) -> str:
        """Return the server's name and version."""
        info = self._client.info("server")  # pyright: ignore[reportUnknownMemberType]
        if "valkey_version" in info:
            return f"Valkey {info['valkey_version']}"
        return f"Redis {info['redis_version']}"

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return probe.getsockname()[1]


@contextmanager
def running(program: str, mode: str) -> Generator[Server]:
    """Start `program` in `mode` and end it, by its process, on the way out."""
    found = shutil.which(program)
    if found is None:
        raise RuntimeError(f"{program} is not installed; install it or name another one with --server")
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        place = ("--bind", _LOOPBACK, "--port", str(port), "--dir", folder, "--save", "")
        process = subprocess.Popen(
            [found, *place, *MODES[mode]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.defpath},
        )
        server = Server(f"redis://{_LOOPBACK}:{port}/0")
        try:
            server.wait_ready(process)
            yield server
        finally:
            server.close()
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
