"""Runs the programs of the sides as processes, and reads the JSON line each prints.

Always holds: every process started here has ended when the call returns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from benchmarks.measure import Line

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120.0
"""Seconds that one program may take."""

_POLL_SECONDS = 0.05
_STOP_SECONDS = 10.0
_SHOWN = 200


class ProgramError(Exception):
    """A program of a side failed; the text is one line without paths of this machine."""


def one_line(text: str) -> str:
    """Return the last line that says something, without paths of this machine."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = lines[-1] if lines else "no message"
    for path, word in ((sys.executable, "python"), (str(ROOT), "."), (str(Path.home()), "~")):
        shown = shown.replace(path, word)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def _read(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _environment(url: str) -> dict[str, str]:
    """Return the variables of every program: where the server is, and nobody's debugging aids."""
    return {
        "EVENTBUS_URL": url,
        "BENCH_URL": url,
        "PYTHONPATH": str(ROOT),
        "NODE_ENV": "production",
        "COREDIS_OPTIMIZED": "true",
    }


class Program:
    """One running program; its output goes to files, so that a full pipe never blocks it."""

    def __init__(self, command: Sequence[str], url: str, more: Mapping[str, str] | None = None) -> None:
        self.title = " ".join(Path(word).name for word in command[:4])
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**os.environ, **_environment(url), **(more or {})}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            env=environment,
            cwd=ROOT,
        )

    def has_ended(self) -> bool:
        """Tell whether the process is gone."""
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise ProgramError if the process ended with an exit code other than 0."""
        code = self._process.poll()
        if code:
            raise ProgramError(f"{self.title}: exit code {code}: {one_line(_read(self._errors))}")

    def wait(self) -> None:
        """Wait for its end; raises ProgramError if that takes too long or is a failure."""
        try:
            self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise ProgramError(f"{self.title}: no end within {TIMEOUT:.0f} s") from None
        self.check()

    def check_runs(self) -> None:
        """Raise ProgramError if the process has ended, whatever its exit code."""
        self.check()
        if self.has_ended():
            raise ProgramError(f"{self.title}: ended before its work")

    def line(self) -> Line:
        """Return what an ended program printed last."""
        self.check()
        output = _read(self._output).strip()
        try:
            return msgspec.json.decode(output.splitlines()[-1], type=Line)
        except (IndexError, msgspec.DecodeError, msgspec.ValidationError):
            raise ProgramError(f"{self.title}: expected one JSON line, got: {one_line(output)}") from None

    def close(self) -> None:
        """End the process if it still runs."""
        if not self.has_ended():
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()
        self._errors.close()


@contextmanager
def started(command: Sequence[str], url: str, more: Mapping[str, str] | None = None) -> Generator[Program]:
    """Start a program, with `more` environment variables, and end it on the way out."""
    program = Program(command, url, more)
    try:
        yield program
    finally:
        program.close()


def measured(command: Sequence[str], url: str, worker: Program | None = None) -> Line:
    """Run a program to its end and return its line; raises ProgramError, also if `worker` ends."""
    with started(command, url) as program:
        deadline = time.monotonic() + TIMEOUT
        while not program.has_ended():
            if worker is not None:
                worker.check_runs()
            if time.monotonic() > deadline:
                raise ProgramError(f"{program.title}: no end within {TIMEOUT:.0f} s")
            time.sleep(_POLL_SECONDS)
        return program.line()
