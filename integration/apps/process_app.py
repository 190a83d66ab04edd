"""The app of process pools under test: `eventbus worker apps.process_app:provider`, run in `integration/`.

Running handlers leave files in the folder that EVENTBUS_TEST_FOLDER names.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from eventbus import Event, EventProvider, JobFacts, Retry


class Task(msgspec.Struct):
    weight: int


class TaskResult(msgspec.Struct):
    weight: int
    pid: int


computed = Event("computed", payload=Task, result=TaskResult)
forked = Event("forked", payload=Task, result=TaskResult)

provider = EventProvider()

_folder = Path(os.environ["EVENTBUS_TEST_FOLDER"])


@provider.on(computed, pool="process", concurrency=3, retry=Retry(attempts=20, delay="10ms", backoff="fixed"))
def compute(task: Task, facts: JobFacts) -> TaskResult:
    """Compute for a few milliseconds."""
    end = time.process_time() + 0.005
    while time.process_time() < end:
        pass
    return TaskResult(task.weight * 9 // 10, os.getpid())


@provider.on(forked, pool="process", concurrency=3, retry=Retry(attempts=20, delay="10ms", backoff="fixed"))
def fork(task: Task, facts: JobFacts) -> TaskResult:
    """Fork, and let the fork end in one of several ways, now or during a later job."""
    if os.fork() == 0:
        time.sleep(task.weight % 5 / 100)
        if task.weight % 3 == 0:
            os.execv("/nowhere/at/all", ["program"])
        if task.weight % 3 == 1:
            sys.exit(f"the fork of {facts.job_id} leaves")
        return TaskResult(-1, os.getpid())
    if task.weight % 2:
        os.wait()
    return TaskResult(task.weight * 9 // 10, os.getpid())


@provider.on("held", pool="process", concurrency=2)
def hold(gate: str, facts: JobFacts) -> str:
    """Start a child program, write both process ids into a file, and compute until the gate is open."""
    beside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note = _folder / f"{facts.job_id}.part"
    note.write_text(f"{os.getpid()} {beside.pid}")
    note.rename(note.with_suffix(".held"))
    while not (_folder / gate).exists():
        pass
    beside.kill()
    beside.wait()
    return "held"


@provider.on("gil_held", pool="process", concurrency=1)
def hold_gil(seconds: int) -> int:
    """Run native code that lets no other thread of the process run."""
    (_folder / "gil_held").touch()
    ctypes.PyDLL(None).sleep(seconds)
    return os.getpid()
