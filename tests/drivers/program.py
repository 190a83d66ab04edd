"""The command line as a separate process: start it, wait for its output, send it signals."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from drivers.fork_server import fork_server

__all__ = ["Program"]


_FOLDER = Path(__file__).parents[1] / "cli"
_WITHIN = 240.0


class Program:
    """One process of `python -m eventbus`, behind its imports; threads read its output as it comes."""

    def __init__(
        self, *words: str, environment: Mapping[str, str], folder: Path = _FOLDER, output: int | None = None
    ) -> None:
        """If `output` is a pipe of the test, the test reads it."""
        self.output: list[str] = []
        self.errors: list[str] = []
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        stdin, self._input = _pipe("wb")
        stderr, errors = _pipe("rb")
        sources = [(errors, self.errors)]
        stdout = output
        if stdout is None:
            stdout, said = _pipe("rb")
            sources.append((said, self.output))
        self.process = fork_server().start(
            "eventbus",
            words,
            environment={**os.environ, **environment},
            cwd=folder,
            files=(stdin, stdout, stderr),
        )
        for theirs in {stdin, stdout, stderr} - {output}:
            os.close(theirs)
        self._ours = [self._input, *(source for source, _ in sources)]
        self._readers = [threading.Thread(target=self._read, args=each, daemon=True) for each in sources]
        for reader in self._readers:
            reader.start()

    def wait_for(self, text: str, *, is_whole: bool = False) -> str:
        """Wait for a line with `text` on stdout or stderr, after the lines of earlier calls. `is_whole`: the
        line is the text, for one that is short enough to be part of an address.
        """
        deadline = time.monotonic() + _WITHIN
        while True:
            try:
                line = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{text!r} was not said; but: {self.output + self.errors}") from None
            if line == text or (text in line and not is_whole):
                return line

    def write(self, text: str) -> None:
        self._input.write(text.encode())
        self._input.flush()

    def close_input(self) -> None:
        self._input.close()

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
        for file in self._ours:
            with suppress(BrokenPipeError):
                file.close()

    def _read(self, stream: IO[bytes], kept: list[str]) -> None:
        for line in stream:
            kept.append(line.decode().rstrip("\n"))
            self._said.put(kept[-1])


def _pipe(mode: Literal["rb", "wb"]) -> tuple[int, IO[bytes]]:
    """Make a pipe. Returns the end of the program, and ours, which we read or write as `mode` says."""
    ends = os.pipe()
    theirs, ours = ends if mode == "wb" else ends[::-1]
    return theirs, os.fdopen(ours, mode)
