"""The handler calls of a worker process: when the first and the last came, and what they cost.

The standard library only: a peer's worker runs in the peer's own environment. With BENCH_REPORT
set to a path, the figures are left there as JSON: at the call number BENCH_COUNT, or, without a
count, when the process ends. CPU is counted from the first call to that moment, so that starting
Python is no part of it.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
from pathlib import Path
from time import perf_counter

REPORT_VARIABLE = "BENCH_REPORT"
COUNT_VARIABLE = "BENCH_COUNT"


def _cpu() -> dict[str, float]:
    """Return the CPU seconds of this process and of this thread, user and system apart."""
    whole, thread = resource.getrusage(resource.RUSAGE_SELF), _thread_user()
    return {"user": whole.ru_utime, "system": whole.ru_stime, "loop_user": thread}


def _thread_user() -> float:
    which = getattr(resource, "RUSAGE_THREAD", None)  # Linux
    return resource.getrusage(which).ru_utime if which is not None else 0.0


class Calls:
    """Counts the handler calls of this process; `note` is called at the start of each."""

    def __init__(self, path: str = "", expected: int = 0) -> None:
        self._path = path
        self._expected = expected
        self._count = 0
        self._first = 0.0
        self._last = 0.0
        self._before: dict[str, float] = {}
        if path and not expected:
            atexit.register(self.leave)

    def note(self) -> None:
        """Count one call; the expected last one leaves the report."""
        self._last = perf_counter()
        self._count += 1
        if self._count == 1:
            self._first = self._last
            self._before = _cpu()
        if self._count == self._expected and self._path:
            self.leave()

    def leave(self) -> None:
        """Write the report, as a whole or not at all."""
        cpu = {name: value - self._before.get(name, value) for name, value in _cpu().items()}
        text = json.dumps({"count": self._count, "first": self._first, "last": self._last, **cpu})
        draft = Path(f"{self._path}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(self._path)


calls = Calls(os.environ.get(REPORT_VARIABLE, ""), int(os.environ.get(COUNT_VARIABLE, "0")))
