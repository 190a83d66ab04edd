"""The journal: what handlers did, kept outside the server in a file to which each process appends lines."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

__all__ = ["Entry", "Journal"]


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
        line = msgspec.json.encode(Entry(what, job, attempt, os.getpid(), payload)) + b"\n"
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
