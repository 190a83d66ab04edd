"""`eventbus worker --reload`: a worker process that is replaced when Python files change.

    watching, worker runs -> a change: worker told to end, waited for -> started again
                          -> worker ended by itself (a mistake in the program): wait for a change
                          -> signal: passed on, the worker's end is ours

What must hold: never two workers at a time; the worker ends with this process, also by
`kill -9`, for it has a pipe from here as its standard input. For development: a fleet is
updated by starting new workers and ending old ones.
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

__all__ = ["Reloader", "run_reloading"]

_FLAG = "--reload"
_GRACE = "2s"
"""How long handlers may finish before a restart, unless `--grace` says otherwise."""
_KILL_AFTER = 15.0
_LOOK_MS = 200
_SHOWN = 3


def run_reloading(words: list[str], *, grace: float | None) -> int:
    """Run the worker of this command line, again at each change, until a signal; returns the exit code.

    `words` is the command line after the program's name. Raises CommandError without `watchfiles`.
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
    return reloader.run({path for _, path in each} for each in changes)


class Reloader:
    """One worker process at a time, replaced at changes."""

    def __init__(self, command: list[str], *, patience: float) -> None:
        """`patience`: seconds for a worker that was told to end, before it is killed."""
        self._command = command
        self._patience = patience
        self._worker: subprocess.Popen[bytes] | None = None
        self._is_end_told = False
        self.is_asked_to_end = threading.Event()

    def run(self, changes: Iterable[set[str]]) -> int:
        """Run until a signal; `changes` are paths, an empty set now and then. Call it in the main thread."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            self._start()
            for paths in changes:
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
            return  # a signal came while the old one ended
        self._is_end_told = False
        # In a group of its own: Ctrl-C reaches this process, which passes it on once.
        self._worker = subprocess.Popen(  # noqa: S603  (our own command line)
            self._command, stdin=subprocess.PIPE, process_group=0
        )
        if self.is_asked_to_end.is_set():
            self._worker.terminate()  # the signal came before there was one to pass it on to

    def _look(self) -> None:
        """Say once that the worker ended by itself."""
        if self._worker is not None and self._worker.poll() is not None and not self._is_end_told:
            self._is_end_told = True
            code = self._worker.returncode
            tell(f"eventbus: the worker ended with exit code {code}; it is started again at the next change")

    def _end(self) -> None:
        """Tell the worker to end as SIGTERM does, and wait for it."""
        if self._worker is not None and self._worker.poll() is None:
            self._worker.terminate()
            try:
                self._worker.wait(self._patience)
            except subprocess.TimeoutExpired:
                tell(f"eventbus: the worker did not end in {self._patience:g} s, killed")
        self._kill()

    def _wait(self) -> int:
        """Wait for the worker that a signal ends; returns its exit code."""
        if self._worker is None or self._is_end_told:
            return 0  # there is none any more
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
        assert worker.stdin is not None  # noqa: S101  (asked for)
        worker.stdin.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.is_asked_to_end.set()
        if self._worker is not None and self._worker.poll() is None:
            self._worker.send_signal(number)


def _shown(paths: set[str]) -> str:
    names = sorted(os.path.relpath(path) for path in paths)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
