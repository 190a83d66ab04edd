"""Child processes: the command line of this package, run as users run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import msgspec
from conditions import WITHIN, wait_until

__all__ = ["HERE", "Program", "clean_environment"]

HERE = Path(__file__).resolve().parent
"""Where `shop` and the other programs lie."""


def clean_environment() -> dict[str, str]:
    """Ours, without settings that would reach the program."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EVENTBUS_")}


class Program:
    """One process, its output in files. Ended by whoever made it."""

    def __init__(
        self, name: str, command: list[str], *, folder: Path, environment: dict[str, str], cwd: Path = HERE
    ) -> None:
        """`name` names its files in `folder`."""
        self.name = name
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        out: IO[bytes]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
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
        """Bytes of standard output so far; cheap to ask often."""
        return self._out.stat().st_size

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def lines(self) -> list[Any]:
        """Standard output, JSON lines."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    def log(self) -> list[dict[str, Any]]:
        """Standard error, JSON lines; what is no JSON as `{"raw": text}`."""
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
        """What it logged that should not be: errors, and anything that is no log entry."""
        return [each for each in self.log() if each.get("level") not in ("debug", "info", "warning")]

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
        """What is known of it, for a failure."""
        return f"--- {self.name} (pid {self.pid}, exit {self.process.poll()}):\n{self.err[-3000:]}"
