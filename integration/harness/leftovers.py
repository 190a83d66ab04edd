"""What one test started, and the check that all of it is gone after the test.

The check covers connections of the servers, keys without an expiry, entries without a record, and the
child processes and threads of the test process.
"""

from __future__ import annotations

import os
import threading

from checks.audit import Audit
from drivers.children import child_processes
from harness.backends import Backend
from harness.conditions import wait_until
from harness.programs import Program

__all__ = ["Leftovers"]


class Leftovers:
    """The programs and servers of one test, ended in this order."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.backends: list[Backend] = []
        self._children = set(child_processes())
        self._threads = set(threading.enumerate())

    def end(self) -> None:
        """End all that was started; raise AssertionError if anything is left that should be gone."""
        for program in self.programs:
            program.kill()
        try:
            for backend in self.backends:
                self._check(backend)
        finally:
            for backend in self.backends:
                backend.close()
        self._check_process()

    def _check(self, backend: Backend) -> None:
        if not backend.is_running:
            return
        backend.resume()  # a failed test may have left it paused
        wait_until(
            "no connection is left", lambda: not connections(backend), story=lambda: str(connections(backend))
        )
        if backend.is_sound:
            problems = Audit(backend).problems
            assert problems == [], f"left in the server: {problems[:10]}"

    def _check_process(self) -> None:
        wait_until("no thread is left", lambda: set(threading.enumerate()) <= self._threads, story=_threads)
        left = {pid: name for pid, name in child_processes().items() if pid not in self._children}
        assert left == {}, f"child processes are left, of process {os.getpid()}"


def connections(backend: Backend) -> list[str]:
    """Return the names of a server's connections, except this one and those of replicas."""
    with backend.client(client_name="leftovers") as client:
        found = client.client_list()
    return [
        each["name"] or each["addr"]
        for each in found
        if each["name"] != "leftovers" and not set("SM") & set(each["flags"])
    ]


def _threads() -> str:
    return str([each.name for each in threading.enumerate()])
