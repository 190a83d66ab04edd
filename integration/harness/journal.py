"""The journal: what handlers did, kept outside the server in a file to which each process appends lines."""

from __future__ import annotations

import os
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

__all__ = ["PROCESS", "Entry", "Journal", "Process", "process_id"]


class Process:
    """What counts as a process of its own where several workers run in one."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.is_suspect = False
        """Whether it was killed, or may have lost its leases: what it did may have been done once more."""
        self.is_astray = False
        """Whether it may act without its leases now."""
        self.strayed: set[str] = set()
        """The jobs for which it wrote a line meanwhile."""

    def stray(self) -> None:
        """Note that it may act without its leases from now on."""
        self.is_suspect = self.is_astray = True


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def process_id() -> int:
    """Return the id of the process that the caller runs in."""
    process = PROCESS.get()
    return os.getpid() if process is None else process.id


class Entry(NamedTuple):
    """One line: what happened (`began`, `ended`), in which run of which job."""

    what: str
    job: str
    attempt: int
    pid: int
    payload: Any


class Journal:
    """One file, made by the test and written by workers. A `kill -9` leaves no broken line in the middle."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, job: str, attempt: int, payload: Any) -> None:
        process = PROCESS.get()
        if process is not None and process.is_astray:
            process.strayed.add(job)
        line = msgspec.json.encode(Entry(what, job, attempt, process_id(), payload)) + b"\n"
        # A single write with O_APPEND, so that lines of several processes do not mix.
        assert os.write(self._file, line) == len(line)

    def read(self, what: str | None = None) -> list[Entry]:
        """Return all entries in order, or only those of the kind `what`."""
        whole = self._path.read_bytes().rpartition(b"\n")[0]  # the last line may be incomplete
        entries = [msgspec.json.decode(line, type=Entry) for line in whole.splitlines()]
        return [each for each in entries if what in (None, each.what)]

    def runs(self) -> Counter[str]:
        """Return job -> how often its handler began."""
        return Counter(each.job for each in self.read("began"))

    def close(self) -> None:
        os.close(self._file)
