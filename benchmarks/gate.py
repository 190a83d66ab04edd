"""A gate that several worker processes wait at, so that all of them begin at the same moment.

The gate is a lock on a file: the harness holds it alone until everybody is there, the workers
then take it together. A harness that dies opens it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

GATE_VARIABLE = "BENCH_GATE"

_LOCK = "gate"
_POLL_SECONDS = 0.01


def wait_open() -> None:
    """Say that this process is there, and wait until the gate is open; without a gate do nothing."""
    folder = os.environ.get(GATE_VARIABLE)
    if folder is None:
        return
    Path(folder, f"here.{os.getpid()}").touch()
    with Path(folder, _LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)


class Gate:
    """The harness's side of a closed gate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wait_crowd(self, size: int, seconds: float) -> None:
        """Return when `size` processes wait; raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while len(list(self._folder.glob("here.*"))) < size:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{size} workers were not there within {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)


@contextmanager
def closed(folder: Path) -> Generator[Gate]:
    """Keep the gate in `folder` closed for the block."""
    with Path(folder, _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Gate(folder)
