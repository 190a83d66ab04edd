"""Handlers that meddle with the state of their pool process; it imports them from here by name."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import structlog

from eventbus.runtime.process_channel import ANSWER, NOTE, pack

__all__ = ["break_output", "close_all", "forge", "log_late", "replace_channel"]


def close_all(folder: str) -> list[Any]:
    """Close all low file descriptors, open files in their place, and return the final sizes of these
    files.
    """
    os.closerange(3, 256)
    files = [Path(folder, str(n)).open("wb") for n in range(20)]  # noqa: SIM115  (left open)
    structlog.get_logger().info("told on the way")
    return [[os.fstat(file.fileno()).st_size for file in files], os.getpid()]


_SEEN = {"nothing, seen by the process": socket.SHUT_RD, "nothing, seen by the worker": socket.SHUT_WR}


def replace_channel(ask: list[str]) -> str:
    """Close the channel. Perhaps put a file in its place, or a socket whose traffic is written down."""
    kind, folder = ask
    taken = _desk()._channel.fileno()
    other = socket.socket(fileno=os.dup(taken))
    os.close(taken)
    if kind in _SEEN:  # a thread still reads from the channel, so closing alone has no effect
        other.shutdown(_SEEN[kind])
        time.sleep(60)
    if kind == "a file":
        with Path(folder, "heard").open("wb") as file:
            os.dup2(file.fileno(), taken)
    if kind == "a socket":
        ours, theirs = socket.socketpair()
        os.dup2(theirs.fileno(), taken)
        file = Path(folder, "heard").open("wb", buffering=0)  # noqa: SIM115  (a thread has it)
        threading.Thread(target=_write_down, args=(ours, file), daemon=True).start()
    structlog.get_logger().info("told on the way")
    other.close()  # not before: the worker that sees it kills this process
    return "kept"


def _write_down(heard: socket.socket, file: IO[bytes]) -> None:
    while data := heard.recv(4096):
        file.write(data)


def forge(ask: list[str]) -> list[Any]:
    """Write what `ask` names into the channel; if `ask` also names a file, wait until that exists."""
    how, gate = ask
    desk = _desk()
    number = desk._number
    answer = b'{"result":["forged",0]}'
    written = {
        "a byte": b"x",
        "the answer": pack(ANSWER, number, answer),
        "an earlier answer": pack(ANSWER, number - 1, answer),
        "no report": pack(ANSWER, number, b"\xff{"),
        "a later note": pack(NOTE, number + 1, b"{}"),
        "half a frame": pack(ANSWER, number + 1, answer)[:9],
    }[how]
    if gate:
        arguments = (Path(gate), desk._channel.fileno(), written)
        threading.Thread(target=_write_later, args=arguments, daemon=True).start()
    else:
        os.write(desk._channel.fileno(), written)
    return ["honest", os.getpid()]


def _write_later(gate: Path, descriptor: int, written: bytes) -> None:
    _wait_for(gate)
    os.write(descriptor, written)


def log_late(gate: str) -> list[Any]:
    """Leave a thread behind that logs as soon as a file exists."""
    threading.Thread(target=_log_later, args=(Path(gate),), daemon=True).start()
    return ["left one", os.getpid()]


def _log_later(gate: Path) -> None:
    _wait_for(gate)
    structlog.get_logger().info("told late")


def _wait_for(gate: Path) -> None:
    while not gate.exists():
        time.sleep(0.01)


class _Refusing:
    """A stream that accepts everything and cannot flush."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        raise RuntimeError("not today")


def break_output(how: str) -> list[Any]:
    """Print, and leave standard output in the named state."""
    if how == "a full disk":
        sys.stdout = Path("/dev/full").open("w")  # noqa: SIM115  (it stays open)
    elif how == "its descriptor closed":
        sys.stdout = os.fdopen(os.dup(1), "w")
    elif how == "none":
        sys.stdout = sys.stderr = None  # type: ignore[assignment]
    elif how == "another":
        sys.stdout = _Refusing()  # type: ignore[assignment]
    print("words")  # noqa: T201
    out: Any = sys.stdout
    if how == "closed":
        out.close()
    elif how == "its descriptor closed":
        os.close(out.fileno())
    elif how == "no stream":
        sys.stdout = 7  # type: ignore[assignment]
    return [how, os.getpid()]


def _desk() -> Any:
    """Return the server object of this process: code in the same process can go as far as that."""
    frame: Any = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "_channel"):
        frame = frame.f_back
    return frame.f_locals["self"]
