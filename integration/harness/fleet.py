"""Several worker processes that die and are started again."""

from __future__ import annotations

import random
import signal
from pathlib import Path

from harness.programs import Program, clean_environment

__all__ = ["Fleet"]


class Fleet:
    """`size` workers of one app; a worker that dies is started again."""

    def __init__(
        self, url: str, folder: Path, *, size: int, app: str = "apps.event_app:provider", **settings: object
    ) -> None:
        named = {f"EVENTBUS_{name.upper()}": str(value) for name, value in settings.items()}
        self._environment = clean_environment() | named
        self._environment |= {"EVENTBUS_TEST_FOLDER": str(folder), "EVENTBUS_URL": url}
        self._folder = folder
        self._app = app
        self.workers: list[Program] = []
        """All workers that were ever started."""
        self.killed: set[int] = set()
        """The ids of the processes that were killed."""
        self.spared = 0
        """Kills that were skipped, because fewer than two workers were running."""
        self._current = [self._start() for _ in range(size)]

    @property
    def kills(self) -> int:
        return len(self.killed)

    def kill(self, rng: random.Random) -> None:
        """Kill one running worker with `kill -9`, and start another in its place.

        The last running worker is spared: if a start takes longer than a second, none would ever run.
        """
        ready = self._ready()
        if len(ready) < 2:
            self.spared += 1
            return
        place = rng.choice(ready)
        self._current[place].kill()
        self.killed.add(self._current[place].pid)
        self._current[place] = self._start()

    def choose(self, rng: random.Random) -> Program:
        """Return one worker; a running one, if there is any."""
        return self._current[rng.choice(self._ready() or range(len(self._current)))]

    def end(self) -> list[int]:
        """Tell all workers to end, and return their exit codes."""
        for worker in self._current:
            worker.wait_logged("worker ready")  # before that, a signal has its default effect
            worker.send(signal.SIGTERM)
        return [worker.wait_ended() for worker in self._current]

    def close(self) -> None:
        """Kill the workers that still run."""
        for worker in self.workers:
            worker.kill()

    def complaints(self) -> list[str]:
        """Return the log entries that should not be there."""
        return [str(entry)[:1000] for worker in self.workers for entry in worker.complaints()]

    def _ready(self) -> list[int]:
        """Return the indexes of the running workers."""
        return [place for place, each in enumerate(self._current) if each.logged("worker ready")]

    def _start(self) -> Program:
        words = ["-m", "eventbus", "worker", self._app]
        name = f"worker-{len(self.workers)}"
        worker = Program(name, words, folder=self._folder, environment=self._environment)
        self.workers.append(worker)
        return worker
