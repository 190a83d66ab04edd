"""`eventbus worker --reload`: runs a worker process and restarts it when Python files change.

    watching, worker runs -> a file changes: ask the worker to end, wait for it, start it again
                          -> the worker ends by itself (a mistake in the program): wait for a change
                          -> a signal: pass it on, and end with the worker

What must always hold:
- There are never two workers at a time.
- The worker ends with this process, also after `kill -9`, because its standard input is a pipe from
  this process.
- The worker that runs after a change has read that change. The files are watched before the first
  worker reads them. Workers write no byte code, because Python compares the source's size and its
  time in whole seconds: byte code of a second ago would hide a change that left the size as it was.

This is for development. In production, start new workers and end old ones.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from eventbus.cli.failures import CommandError, tell

_FLAG = "--reload"
_GRACE = "2s"
"""How long handlers may finish before a restart, unless `--grace` says otherwise."""
_KILL_AFTER = 15.0
"""Seconds beyond the grace until a worker that was asked to end is killed."""
_LOOK_MS = 200
"""Milliseconds between two checks whether the worker has ended by itself."""
_SHOWN = 3
"""The most changed files that are named."""


def run_reloading(words: list[str], *, grace: float | None) -> int:
    """Run the worker of this command line until a signal, and restart it at each change.

    Returns the exit code. `words` is the command line after the program's name. Raises CommandError if
    `watchfiles` is not installed.
    """
    try:
        watchfiles: Any = importlib.import_module("watchfiles")  # an extra
    except ModuleNotFoundError as error:
        raise CommandError(
            "--reload needs watchfiles; pip install 'eventbus-workflows[cli]'", exit_code=2
        ) from error
    words = [word for word in words if word != _FLAG]
    words += ["--until-eof"] if grace is not None else ["--until-eof", "--grace", _GRACE]
    reloader = Reloader([sys.executable, "-m", "eventbus", *words], patience=_KILL_AFTER + (grace or 0.0))
    folder = Path.cwd()
    tell(f"eventbus: restarting the worker when Python files in {folder} change")
    changes = watchfiles.watch(
        folder,
        watch_filter=watchfiles.PythonFilter(),
        stop_event=reloader.is_asked_to_end,
        debounce=400,
        rust_timeout=_LOOK_MS,
        yield_on_timeout=True,
        raise_interrupt=False,
    )
    return reloader.run({path for _, path in batch} for batch in changes)


class Reloader:
    """Runs one worker process at a time, and replaces it at changes."""

    def __init__(self, command: list[str], *, patience: float) -> None:
        """`patience` is how many seconds a worker has to end after it was asked to; then it is killed."""
        self._command = command
        self._patience = patience
        self._worker: subprocess.Popen[bytes] | None = None
        self._is_end_told = False
        self.is_asked_to_end: threading.Event = threading.Event()

    def run(self, changes: Iterable[set[str]]) -> int:
        """Run until a signal; return the exit code. Call it in the main thread.

        `changes` yields sets of changed paths, and an empty set at each check without a change. The worker is
        started after the first of them, so that it has read the change, if that is one.
        """
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            looks = iter(changes)
            next(looks, None)  # from here on the files are watched
            self._start()
            for paths in looks:
                if self.is_asked_to_end.is_set():
                    break
                if paths:
                    tell(f"eventbus: {_shown(paths)} changed, restarting the worker")
                    self._end()
                    self._start()
                else:
                    self._look()
            return self._wait()
        finally:
            self._kill()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        if self.is_asked_to_end.is_set():
            return  # a signal came while the old worker ended
        self._is_end_told = False
        # In a group of its own, so that Ctrl-C reaches only this process, which passes it on once.
        self._worker = subprocess.Popen(  # noqa: S603  (our own command line)
            self._command,
            stdin=subprocess.PIPE,
            process_group=0,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        if self.is_asked_to_end.is_set():
            self._worker.terminate()  # the signal came before the worker existed, so it was not passed on

    def _look(self) -> None:
        """Report once that the worker has ended by itself."""
        if self._worker is not None and self._worker.poll() is not None and not self._is_end_told:
            self._is_end_told = True
            code = self._worker.returncode
            tell(f"eventbus: the worker ended with exit code {code}; it is started again at the next change")

    def _end(self) -> None:
        """Send the worker SIGTERM and wait for its end; kill it if that takes too long."""
        if self._worker is not None and self._worker.poll() is None:
            self._worker.terminate()
            try:
                self._worker.wait(self._patience)
            except subprocess.TimeoutExpired:
                tell(f"eventbus: the worker did not end in {self._patience:g} s, killed")
        self._kill()

    def _wait(self) -> int:
        """Wait for the worker, which a signal ends, and return its exit code."""
        if self._worker is None or self._is_end_told:
            return 0  # the worker has ended before
        try:
            code = self._worker.wait(self._patience)
        except subprocess.TimeoutExpired:
            tell(f"eventbus: the worker did not end in {self._patience:g} s, killed")
            return 128 + signal.SIGKILL
        return code if code >= 0 else 128 - code

    def _kill(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.kill()
        worker.wait()
        assert worker.stdin is not None  # noqa: S101  (Popen was given a pipe)
        worker.stdin.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.is_asked_to_end.set()
        if self._worker is not None and self._worker.poll() is None:
            self._worker.send_signal(number)


def _shown(paths: set[str]) -> str:
    names = sorted(os.path.relpath(path) for path in paths)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
