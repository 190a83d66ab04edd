"""The sides that are compared: ours, BullMQ on Node.js, and the floor.

A side knows the commands of its programs and what it needs installed. Another peer is one
more class here and a folder under `peers/`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.programs import ProgramError
from benchmarks.works import Step

PEERS = Path(__file__).resolve().parent / "peers"

OUR_WORKER = (sys.executable, "-m", "eventbus", "worker", "benchmarks.app:provider")
"""The command of a worker of ours; EVENTBUS_URL says where."""


class Side(Protocol):
    """One side of the comparison."""

    name: str
    peer: bool

    def prepare(self) -> None:
        """Install what is missing; raises ProgramError if that fails."""
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


def _flags(step: Step, url: str) -> list[str]:
    numbers = ("--count", str(step.count), "--in-flight", str(step.in_flight), "--chunk", str(step.chunk))
    return ["--url", url, *numbers]


def _installed(*names: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


class Ours:
    """This library."""

    name = "eventbus"
    peer = False

    def prepare(self) -> None:
        """Nothing: it is installed with the harness."""

    def command(self, step: Step, url: str) -> list[str]:
        """Return the command that runs `step`."""
        return [sys.executable, "-m", "benchmarks.ours", step.name, *_flags(step, url)]

    def worker(self, url: str) -> list[str]:
        """Return the worker's command; EVENTBUS_URL tells it where."""
        del url
        return [*OUR_WORKER]

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages on the hot path."""
        return _installed("eventbus-workflows", "redis", "hiredis", "msgspec", "anyio", "uvloop")


class Floor:
    """Plain redis-py, without anything that makes a job safe."""

    name = "floor"
    peer = False

    def prepare(self) -> None:
        """Nothing: it is installed with the harness."""

    def command(self, step: Step, url: str) -> list[str]:
        """Return the command that runs `step`."""
        return [sys.executable, "-m", "benchmarks.floor", step.name, *_flags(step, url)]

    def worker(self, url: str) -> list[str]:
        """Return the worker's command."""
        return [sys.executable, "-m", "benchmarks.floor", "worker", "--url", url]

    def versions(self) -> dict[str, str]:
        """Return nothing: what it uses is listed with ours."""
        return {}


class _Package(msgspec.Struct):
    version: str


class BullMQ:
    """BullMQ on Node.js, from npm."""

    name = "BullMQ"
    peer = True
    folder = PEERS / "bullmq"

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
        programs = {"bulk": "enqueue", "fill": "enqueue", "latency": "reply"}
        return [
            self._node(),
            str(self.folder / f"{programs.get(step.name, step.name)}.js"),
            *_flags(step, url),
        ]

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


SIDES: tuple[Side, ...] = (Ours(), BullMQ(), Floor())
"""All sides, in the order of a round; the first is the one that ratios are of."""
