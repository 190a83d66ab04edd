"""How soon `eventbus demo` shows its first result."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.own.lab import Lab
from benchmarks.own.row import Column, Limit
from benchmarks.processes.programs import ROOT, ProgramError

_RESULT = re.compile(rb"^\s*\d+\.\d+ s  ")
_COMMAND = (sys.executable, "-m", "eventbus", "demo")


class Demo:
    """Start the demo, embedded server and worker process included, and read its lines."""

    name = "demo"
    title = "`eventbus demo`: from its start to its first result, second run"
    columns = (Column("seconds", "s"),)
    variants = ("demo",)
    limits = (Limit("seconds", "demo", 1.5),)
    most_rounds = 3

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Run it twice; the first run has what is read and compiled for the first time."""
        del lab
        first_result()
        yield "demo", {"seconds": first_result()}


def first_result() -> float:
    """Run the demo to its end and return the seconds to the first line with a result."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENTBUS_")}
    start = time.perf_counter()
    found: float | None = None
    with subprocess.Popen(
        _COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=ROOT
    ) as demo:
        for line in demo.stdout or ():
            if found is None and _RESULT.match(line):
                found = time.perf_counter() - start
    if found is None or demo.returncode:
        raise ProgramError(f"eventbus demo: no result; exit code {demo.returncode}")
    return found
