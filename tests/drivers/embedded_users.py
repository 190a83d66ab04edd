"""Processes that use an embedded server, and functions that inspect its folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from eventbus.store.embedded import server

__all__ = [
    "DIE",
    "FORK",
    "User",
    "client",
    "is_alive",
    "lock",
    "runs",
    "server_pid",
    "user_pids",
    "wait_until",
]

_PROGRAM = """
import os, signal, sys
from pathlib import Path
from eventbus.store.embedded import process
from eventbus.store.embedded.server import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]) if sys.argv[1] else None)
{before}
print("socket", server.start(), flush=True)
{after}
sys.stdin.readline()
server.stop()
print("stopped", flush=True)
sys.stdin.readline()
"""
DIE = "os.kill(os.getpid(), signal.SIGKILL)"
FORK = """
if os.fork() == 0:
    server.stop()  # this must not stop the server: it belongs to the parent
    print("child", os.getpid(), flush=True)
    {work}
    signal.pause()
"""


class User:
    """A separate process that uses the server of a folder, or a temporary one."""

    def __init__(self, folder: Path | None, *, before: str = "", after: str = "", **environment: str) -> None:
        """Run the code `before` and `after` the start of the server. It stops and ends when it is told to."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(before=before, after=after), str(folder or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait_word(self, word: str) -> str:
        """Wait for a line that begins with `word`, and return the rest of it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError(f"the process ended before it said {word}")

    def go_on(self) -> None:
        """Let it go on and stop its server."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Let it stop, and wait until it has."""
        self.go_on()
        self.wait_word("stopped")

    def kill(self) -> None:
        """Kill this process alone, not its forks."""
        self._process.kill()
        self.wait_dead()

    def wait_dead(self) -> int:
        """Wait until it has ended, and return its exit code."""
        return self._process.wait(timeout=240)

    def close(self) -> None:
        """Kill this process and all its forks."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until another process has made `condition` true."""
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.002)


def client(address: Path | str) -> Any:
    """A client of the server at a socket; closed by `with`."""
    return redis.Redis(unix_socket_path=str(address), decode_responses=True)


def lock(path: Path) -> server._Lock:  # pyright: ignore[reportPrivateUsage]
    """Open a lock file as another user process would."""
    return server._Lock(path)  # pyright: ignore[reportPrivateUsage]


def is_alive(folder: Path) -> bool:
    """Tell whether a server holds the lock of the folder."""
    probe = lock(folder / "server.lock")
    try:
        return not probe.take()
    finally:
        probe.close()


def server_pid(folder: Path) -> int:
    """Return the process id that the server itself wrote into its folder."""
    return int((folder / "server.pid").read_text())


def user_pids(folder: Path) -> list[int]:
    """Return the processes that have a user file, whether they still run or not."""
    return sorted(int(file.name.partition("-")[0]) for file in (folder / "users").iterdir())


def runs(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in ("", "Z")
