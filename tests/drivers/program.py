"""The command line as a separate process: start it, wait for its output, send it signals."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

__all__ = ["Program"]


_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "tests" / "cli"
_WITHIN = 60.0


class Program:
    """One process of `python -m eventbus`; threads read its output as it comes."""

    def __init__(
        self,
        *words: str,
        environment: Mapping[str, str],
        folder: Path = _FOLDER,
        output: int = subprocess.PIPE,
    ) -> None:
        """If `output` is a pipe of the test, the test reads it."""
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "eventbus", *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
        )
        self.output: list[str] = []
        self.errors: list[str] = []
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        streams = ((self.process.stdout, self.output), (self.process.stderr, self.errors))
        self._readers = [
            threading.Thread(target=self._read, args=(stream, kept), daemon=True)
            for stream, kept in streams
            if stream is not None
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, text: str) -> str:
        """Wait for a line with `text` on stdout or stderr, after the lines of earlier calls."""
        deadline = time.monotonic() + _WITHIN
        while True:
            try:
                line = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{text!r} was not said; but: {self.output + self.errors}") from None
            if text in line:
                return line

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self.process.wait(_WITHIN)
        for reader in self._readers:
            reader.join(_WITHIN)
        return code

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def _read(self, stream: IO[bytes], kept: list[str]) -> None:
        for line in stream:
            kept.append(line.decode().rstrip("\n"))
            self._said.put(kept[-1])
