"""What our own rows are measured with: the server, and our programs with all their flags."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from benchmarks.app import SERVES_VARIABLE
from benchmarks.measure import Line
from benchmarks.processes.draining import drain, drain_as_fleet
from benchmarks.processes.programs import Program, measured, started
from benchmarks.processes.server import Server
from benchmarks.sides import OUR_WORKER
from benchmarks.works import FILL_CHUNK

SMALL_COUNT = 1000
"""With a --count up to this, a run is a smoke run: windows of time are short."""


class Lab:
    """A server and the sizes of this run."""

    def __init__(self, server: Server, count: int) -> None:
        self.server = server
        self.count = count
        self.is_small = count <= SMALL_COUNT

    def emit(self, step: str, count: int, *, worker: Program | None = None, **flags: int) -> Line:
        """Run a step of `ours.py`; `flags` are its flags, with underscores."""
        return self._run("benchmarks.ours", step, worker, count=count, **flags)

    def execute(self, shape: str, count: int, *, worker: Program, in_flight: int, members: int) -> Line:
        """Run flows of a shape, with `our_flows.py`."""
        flags = {"count": count, "in_flight": in_flight, "members": members}
        return self._run("benchmarks.our_flows", shape, worker, **flags)

    def wait(self, step: str, count: int, *, worker: Program, members: int = 0) -> Line:
        """Run flows that wait, with `our_waits.py`."""
        return self._run("benchmarks.our_waits", step, worker, count=count, members=members)

    def _run(self, module: str, step: str, worker: Program | None, **flags: int) -> Line:
        words = [
            word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        command = [sys.executable, "-m", module, step, "--url", self.server.url, *words]
        return measured(command, self.server.url, worker)

    def fill(self, count: int, *, types: int = 1, size: int = 0) -> Line:
        """Fill the queue with `count` jobs."""
        return self.emit("fill", count, chunk=FILL_CHUNK, types=types, size=size)

    def drain(self, count: int, serves: str = "noop") -> Line:
        """Run `count` jobs of what waits, in one worker."""
        return drain(OUR_WORKER, self.server.url, count, {SERVES_VARIABLE: serves})

    def drain_as_fleet(self, count: int, size: int) -> Line:
        """Empty the queue of `count` jobs with `size` workers that begin together."""
        return drain_as_fleet([*OUR_WORKER, "--burst"], self.server.url, count, size)

    def worker(self, serves: str = "noop", **settings: str) -> AbstractContextManager[Program]:
        """Start a worker for the block, with settings such as `lease="2s"`."""
        named = {f"EVENTBUS_{name.upper()}": value for name, value in settings.items()}
        return started(OUR_WORKER, self.server.url, {SERVES_VARIABLE: serves} | named)


def cost(prefix: str, line: Line) -> dict[str, float]:
    """Return what a job cost: microseconds on the clock, and of the server's CPU."""
    return {f"{prefix}_us": 1e6 / line.per_second, f"{prefix}_cpu_us": line.server_cpu_us}
