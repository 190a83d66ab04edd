"""The sides that are compared: ours, the floor, BullMQ on Node.js, and the Python peers.

A side knows the commands of its programs and what it needs installed. Another Python peer is one
more row of `PYTHON_PEERS` and a folder under `peers/`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from benchmarks.processes.programs import ProgramError
from benchmarks.processes.venvs import Environment
from benchmarks.works import SHAPES, Step

PEERS = Path(__file__).resolve().parent / "peers"

OUR_WORKER = (sys.executable, "-m", "eventbus", "worker", "benchmarks.app:provider")
"""The command of a worker of ours; EVENTBUS_URL says where."""


class Side(Protocol):
    """One side of the comparison."""

    name: str
    peer: bool
    share: float
    """How many of a work's jobs it does: less for one so slow that the run would take hours."""
    most_rounds: int
    drains_by_report: bool
    """`drain` is done by its ordinary worker, whose handler calls are counted; else by a program."""

    def prepare(self) -> None:
        """Install what is missing; raises ProgramError if that fails."""
        ...

    def offers(self, step: str) -> bool:
        """Tell whether the side has such a step."""
        ...

    def command(self, step: Step, url: str) -> list[str]:
        """Return the command that runs `step`."""
        ...

    def worker(self, url: str) -> list[str]:
        """Return the command of the worker that answers `reply` and `latency`."""
        ...

    def versions(self) -> dict[str, str]:
        """Return the names and versions of what this side runs on."""
        ...


def step_flags(step: Step, url: str) -> list[str]:
    """Return the flags that every program reads."""
    numbers = ("--count", str(step.count), "--in-flight", str(step.in_flight), "--chunk", str(step.chunk))
    members = ("--members", str(step.members)) if step.members else ()
    return ["--url", url, *numbers, *members]


def _installed(*names: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


class _Full:
    """What holds for a side that does all jobs in all rounds."""

    peer = False
    share = 1.0
    most_rounds = 1000
    drains_by_report = False

    def prepare(self) -> None:
        """Nothing: it is installed with the harness."""

    def offers(self, step: str) -> bool:
        """Every step."""
        del step
        return True


class Ours(_Full):
    """This library."""

    name = "eventbus"
    drains_by_report = True

    def command(self, step: Step, url: str) -> list[str]:
        """Return the command that runs `step`."""
        module = "benchmarks.our_flows" if step.members else "benchmarks.ours"
        return [sys.executable, "-m", module, step.name, *step_flags(step, url)]

    def worker(self, url: str) -> list[str]:
        """Return the worker's command; EVENTBUS_URL tells it where."""
        del url
        return [*OUR_WORKER]

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages on the hot path."""
        return _installed("eventbus-workflows", "redis", "hiredis", "msgspec", "anyio", "uvloop")


class Floor(_Full):
    """Plain redis-py, without anything that makes a job safe."""

    name = "floor"

    def offers(self, step: str) -> bool:
        """All but flows: it has no records that could depend on each other."""
        return step not in SHAPES

    def command(self, step: Step, url: str) -> list[str]:
        """Return the command that runs `step`."""
        return [sys.executable, "-m", "benchmarks.floor", step.name, *step_flags(step, url)]

    def worker(self, url: str) -> list[str]:
        """Return the worker's command."""
        return [sys.executable, "-m", "benchmarks.floor", "worker", "--url", url]

    def versions(self) -> dict[str, str]:
        """Return nothing: what it uses is listed with ours."""
        return {}


class _Package(msgspec.Struct):
    version: str


class BullMQ(_Full):
    """BullMQ on Node.js, from npm."""

    name = "BullMQ"
    peer = True
    folder = PEERS / "bullmq"
    _SAME: ClassVar = {"program": "chain", "pipeline": "chain"}
    """It has no durable functions and no pipelines, so a flow of the same steps stands beside ours."""

    def prepare(self) -> None:
        """Install the packages if they are missing."""
        self._node()
        if (self.folder / "node_modules" / "bullmq").is_dir():
            return
        npm = shutil.which("npm")
        if npm is None:
            raise ProgramError("npm is not installed")
        flags = ("--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        done = subprocess.run([npm, "install", *flags], cwd=self.folder, check=False, capture_output=True)
        if done.returncode:
            raise ProgramError(f"npm install failed with exit code {done.returncode}")

    def _node(self) -> str:
        node = shutil.which("node")
        if node is None:
            raise ProgramError("Node.js is not installed")
        return node

    def command(self, step: Step, url: str) -> list[str]:
        """Return the command that runs `step`."""
        programs = {"bulk": "enqueue", "fill": "enqueue", "latency": "reply"} | dict.fromkeys(SHAPES, "flow")
        flags = step_flags(step, url) + (
            ["--shape", self._SAME.get(step.name, step.name.removesuffix("-spread"))]
            if step.name in SHAPES
            else []
        )
        return [self._node(), str(self.folder / f"{programs.get(step.name, step.name)}.js"), *flags]

    def worker(self, url: str) -> list[str]:
        """Return the worker's command."""
        return [self._node(), str(self.folder / "worker.js"), "--url", url]

    def versions(self) -> dict[str, str]:
        """Return the versions of Node.js and of the packages."""
        try:
            told = subprocess.run([self._node(), "--version"], check=True, capture_output=True, text=True)
        except (ProgramError, subprocess.CalledProcessError):
            return {"Node.js": "not installed"}
        found = {"Node.js": told.stdout.strip().removeprefix("v")}
        for name in ("bullmq", "ioredis"):
            path = self.folder / "node_modules" / name / "package.json"
            if path.is_file():
                found[name] = msgspec.json.decode(path.read_bytes(), type=_Package).version
        return found


class PythonPeer:
    """A Python package from PyPI, in an environment of its own.

    `run` is its worker's command: a program of the environment, then its arguments.
    """

    peer = True
    most_rounds = 2
    drains_by_report = True
    _STEPS: ClassVar = {"enqueue", "fill", "drain", "reply", "latency"}

    def __init__(self, name: str, folder: str, package: str, run: str, share: float) -> None:
        self.name = name
        self.share = share
        self._folder = folder
        self._packages = [package, "redis"] if folder != "streaq" else [package, "coredis"]
        self._run = run.replace("PEER", f"benchmarks.peers.{folder}").split()
        self._environment = Environment(folder, PEERS / folder / "requirements.txt")

    def prepare(self) -> None:
        """Make its environment if it is missing."""
        self._environment.prepare()

    def offers(self, step: str) -> bool:
        """All but the bulk calls, which only some of them have."""
        return step in self._STEPS

    def command(self, step: Step, url: str) -> list[str]:
        """Return the command that runs `step`."""
        module = f"benchmarks.peers.{self._folder}.emitter"
        return [self._environment.program("python"), "-m", module, step.name, *step_flags(step, url)]

    def worker(self, url: str) -> list[str]:
        """Return the worker's command; BENCH_URL tells it where."""
        del url
        program, *arguments = self._run
        return [self._environment.program(program), *arguments]

    def versions(self) -> dict[str, str]:
        """Return the versions of the package and of its client library."""
        found = self._environment.versions(*self._packages)
        return {f"{name} ({self.name})" if name != self._packages[0] else name: found[name] for name in found}


class Dbos(PythonPeer):
    """DBOS, which has flows alone; they run in the process that calls them, on a file of SQLite."""

    _STEPS: ClassVar = {"chain", "program", "pipeline", "machine"}

    def __init__(self) -> None:
        super().__init__("DBOS", "dbos", "dbos", "python -m PEER.flow worker", 0.04)
        self._packages = ["dbos", "pysqlite3-binary"]

    def command(self, step: Step, url: str) -> list[str]:
        """Return the command that runs `step`."""
        python = self._environment.program("python")
        return [python, "-m", "benchmarks.peers.dbos.flow", step.name, *step_flags(step, url)]


PYTHON_PEERS = (
    PythonPeer("BullMQ-Python", "bullmq_python", "bullmq", "python -m PEER.worker", 0.06),
    PythonPeer("streaq", "streaq", "streaq", "streaq run PEER.worker:worker", 0.04),
    PythonPeer("SAQ", "saq", "saq", "saq PEER.worker.settings", 0.1),
    PythonPeer(
        "taskiq",
        "taskiq",
        "taskiq-redis",
        "taskiq worker PEER.worker:broker --workers 1 --max-async-tasks 100 --log-level WARNING",
        0.1,
    ),
    PythonPeer("docket", "docket", "pydocket", "python -m PEER.worker", 0.06),
    PythonPeer("arq", "arq", "arq", "arq PEER.worker.WorkerSettings", 0.06),
    PythonPeer(
        "Celery",
        "celery",
        "celery",
        "celery -A PEER.worker worker --pool threads --concurrency 100 --loglevel WARNING"
        " --without-gossip --without-mingle --without-heartbeat",
        0.03,
    ),
    Dbos(),
)

SIDES: tuple[Side, ...] = (Ours(), BullMQ(), Floor(), *PYTHON_PEERS)
"""All sides, in the order of a round; the first is the one that ratios are of."""
