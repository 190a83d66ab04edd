"""The fork server: it starts programs as forks of one process that has imported what most of them import.

A start of our command line is half a second of CPU, nearly all of it for imports, and the tests start
thousands. A fork is a process of its own as any other: it has its own session, folder, environment and files,
it reaches the end of an interpreter, and `kill -9` kills it. It only begins behind the imports. Who tests the
start itself, or another release, starts an interpreter.

    test process -- requests through a socket --> fork server -- fork --> `python -m MODULE ...`

What must hold:
- the server has one thread when it forks, otherwise a lock may be held for ever in the fork;
- a program's end is asked for by one thread at a time, and no signal is sent behind it, because the number of
  the process is free for others then;
- an answer belongs to its request, also after an interrupt (Ctrl-C, a limit) cut an earlier one off;
- the server ends when the test process ends, whatever ended that: its socket tells. Programs go on.

All programs of one server have its hash seed, so that their sets have one order. Another session has another.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["Fork", "fork_server", "is_as_ours", "server_pids"]

_IMPORTED = (
    "eventbus.provider",
    "eventbus.cli.app",
    "eventbus.cli.commands.emit",
    "eventbus.cli.commands.worker",
    "workflows",
)
_MOST = 1 << 20
"""Bytes of a request: an environment and a command line. The system takes about 200,000 bytes at once."""


def is_as_ours(environment: dict[str, str]) -> bool:
    """Return whether the variables that a start of the interpreter reads are those of this process."""
    return _read_at_start(environment) == _read_at_start(dict(os.environ))


def _read_at_start(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


class Fork:
    """One program, with the part of `subprocess.Popen` that the tests use."""

    def __init__(self, server: _ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        return self._server.find_end(self)

    def wait(self, timeout: float = float("inf")) -> int:
        """Wait for its end and return the exit code. Raises TimeoutExpired after `timeout` seconds."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"the fork {self.pid}", timeout)
            time.sleep(0.002)  # another process
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._server.send_signal(self, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _ForkServer:
    """The test process's side. Each test process has one."""

    def __init__(self) -> None:
        """Start the server. It imports while the test process goes on."""
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # no terminal, so that standard output is buffered as for a file
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt at the terminal is for the test process
            )

    def start(
        self,
        module: str,
        words: Sequence[str],
        *,
        environment: dict[str, str],
        cwd: Path,
        files: tuple[int, int, int],
    ) -> Fork:
        """Start `python -m module words...`. `files` become its standard input, output and error."""
        request = {"module": module, "words": words, "environment": environment, "cwd": str(cwd)}
        with self._lock:
            return Fork(self, self._ask(request, files))

    def find_end(self, fork: Fork) -> int | None:
        with self._lock:
            if fork.returncode is None:
                fork.returncode = self._ask({"ended": fork.pid})
            return fork.returncode

    def send_signal(self, fork: Fork, number: signal.Signals) -> None:
        with self._lock:
            if fork.returncode is None:
                os.kill(fork.pid, number)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # a fork of the test process may have the socket too
        self._socket.close()
        self._process.wait()

    def _ask(self, request: dict[str, Any], files: Sequence[int] = ()) -> Any:
        number = next(self._numbers)
        socket.send_fds(self._socket, [json.dumps([number, request]).encode()], list(files))
        while answer := self._socket.recv(_MOST):
            of, said = json.loads(answer)
            if of == number:  # otherwise an interrupt kept somebody from reading it
                return said
        raise AssertionError(f"the fork server ended with exit code {self._process.wait()}")


_servers: list[_ForkServer] = []
_starting = threading.Lock()


def fork_server() -> _ForkServer:
    """Return the fork server of this process, which starts with the first use."""
    with _starting:
        if not _servers:
            _servers.append(_ForkServer())
            atexit.register(_servers[0].close)
        return _servers[0]


def server_pids() -> set[int]:
    """Return the number of the fork server's process, if it has been started: it stays for the next test."""
    return {each.pid for each in _servers}


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Answer requests. Returns None at the end, and in a fork the request that it shall run and its files."""
    ended: dict[int, int] = {}  # exit codes by process, because an answer may not be read
    while True:
        try:
            request, files, _, _ = socket.recv_fds(connection, _MOST, 3)
        except ConnectionResetError:  # it ended, and an interrupt had kept it from reading an answer
            return None
        if not request:
            return None
        number, asked = json.loads(request)
        if "ended" in asked:
            pid = asked["ended"]
            if pid not in ended:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            answer = ended.get(pid)
        else:
            assert threading.active_count() == 1
            answer = os.fork()
            if not answer:
                return asked, files
            ended.pop(answer, None)  # the system gave the number again
            for file in files:
                os.close(file)
        connection.send(json.dumps([number, answer]).encode())


def _run(asked: dict[str, Any], files: list[int]) -> None:
    """Become the program."""
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # pyright: ignore[reportAttributeAccessIssue]
    sys.path.insert(0, asked["cwd"])
    sys.argv[1:] = asked["words"]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


def _main() -> None:
    del sys.path[0]  # the folder of this file
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        for module in _IMPORTED:
            importlib.import_module(module)
        gc.freeze()  # forks share this memory as long as nobody writes into it
        program = _serve(connection)
    if program is not None:
        _run(*program)


if __name__ == "__main__":
    _main()
