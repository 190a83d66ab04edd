"""Child processes that run the command line of this package as users do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import msgspec
from drivers.fork_server import Fork, fork_server, is_as_ours
from harness.conditions import WITHIN, wait_until

__all__ = ["HERE", "Program", "clean_environment"]

HERE = Path(__file__).resolve().parents[1]
"""The folder in which programs run, so that they can import `apps`."""

_FAILURES = ("job failed", "step failed", "hook failed", "flow failed", "flow cancelled")
"""Log events of errors that handlers and steps raise on purpose."""


def clean_environment() -> dict[str, str]:
    """Return our environment without settings that would reach the program."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EVENTBUS_")}


class Program:
    """One process with its output in files. Whoever starts it must end it."""

    def __init__(
        self, name: str, command: list[str], *, folder: Path, environment: dict[str, str], cwd: Path = HERE
    ) -> None:
        """Its output goes to files in `folder` that start with `name`."""
        self.name = name
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        inp: IO[bytes]
        out: IO[bytes]
        with Path(os.devnull).open("rb") as inp, self._out.open("wb") as out, self._err.open("wb") as err:
            self.process: Fork | subprocess.Popen[bytes]
            if command[0] == "-m" and is_as_ours(environment):
                self.process = fork_server().start(
                    command[1],
                    command[2:],
                    environment=environment,
                    cwd=cwd,
                    files=(inp.fileno(), out.fileno(), err.fileno()),
                )
            else:
                self.process = subprocess.Popen(
                    [sys.executable, *command],
                    stdin=inp,
                    stdout=out,
                    stderr=err,
                    cwd=cwd,
                    env=environment,
                    start_new_session=True,
                )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> bytes:
        """All of standard output so far."""
        return self._out.read_bytes()

    @property
    def out_size(self) -> int:
        """The size of standard output so far in bytes; cheap to call often."""
        return self._out.stat().st_size

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def lines(self) -> list[Any]:
        """Return standard output as decoded JSON lines."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    def log(self) -> list[dict[str, Any]]:
        """Return standard error as decoded JSON lines; a line that is no JSON becomes `{"raw": text}`."""
        entries: list[dict[str, Any]] = []
        for line in self.err.splitlines():
            try:
                entries.append(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.DecodeError:
                entries.append({"raw": line})
        return entries

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log entries of one event."""
        return [each for each in self.log() if each.get("event") == event]

    def complaints(self) -> list[dict[str, Any]]:
        """Return unexpected log lines: errors that are not those of handlers, and lines that are no entry."""
        errors = [each for each in self.log() if each.get("level") not in ("debug", "info", "warning")]
        return [each for each in errors if each.get("event") not in _FAILURES]

    def wait_logged(self, event: str, *, times: int = 1, within: float = WITHIN) -> None:
        wait_until(
            f"{self.name} logs {event!r} {times} times",
            lambda: len(self.logged(event)) >= times or self.has_ended,
            within=within,
            story=self.story,
        )
        assert len(self.logged(event)) >= times, self.story()

    def wait_ended(self, *, within: float = WITHIN) -> int:
        """Wait for its end and return the exit code; negative: the signal that ended it."""
        wait_until(f"{self.name} ends", lambda: self.has_ended, within=within, story=self.story)
        assert self.process.returncode is not None
        return self.process.returncode

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def story(self) -> str:
        """Describe the process, for the message of a failed test."""
        return f"--- {self.name} (pid {self.pid}, exit {self.process.poll()}):\n{self.err[-3000:]}"
