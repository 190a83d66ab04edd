"""The program under test for process pools: `eventbus worker mill:provider`, run in this folder.

What runs is noted as files in the folder that EVENTBUS_TEST_FOLDER names.
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


class Grain(msgspec.Struct):
    weight: int


class Flour(msgspec.Struct):
    weight: int
    pid: int


milled = Event("milled", payload=Grain, result=Flour)

provider = EventProvider()

_folder = Path(os.environ["EVENTBUS_TEST_FOLDER"])


@provider.on(milled, pool="process", concurrency=3, retry=Retry(attempts=20, delay="10ms", backoff="fixed"))
def mill(grain: Grain, facts: JobFacts) -> Flour:
    """Compute for a few milliseconds."""
    end = time.process_time() + 0.005
    while time.process_time() < end:
        pass
    return Flour(grain.weight * 9 // 10, os.getpid())


@provider.on("ground", pool="process", concurrency=2)
def grind(gate: str, facts: JobFacts) -> str:
    """Compute, beside a program of its own, until the gate is there; say who does it."""
    beside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note = _folder / f"{facts.job_id}.part"
    note.write_text(f"{os.getpid()} {beside.pid}")
    note.rename(note.with_suffix(".grinding"))
    while not (_folder / gate).exists():
        pass
    beside.kill()
    beside.wait()
    return "ground"


@provider.on("gripped", pool="process", concurrency=1)
def grip(seconds: int) -> int:
    """Native code that lets no other thread of its process run."""
    (_folder / "gripped").touch()
    ctypes.PyDLL(None).sleep(seconds)
    return os.getpid()
