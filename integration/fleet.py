"""Several worker processes that die and are started again."""

from __future__ import annotations

import random
import signal
from pathlib import Path

from programs import Program, clean_environment

__all__ = ["Fleet"]


class Fleet:
    """So many workers of one program, each started again when it has died."""

    def __init__(
        self, url: str, folder: Path, *, size: int, app: str = "shop:provider", **settings: object
    ) -> None:
        named = {f"EVENTBUS_{name.upper()}": str(value) for name, value in settings.items()}
        self._environment = clean_environment() | named
        self._environment |= {"EVENTBUS_TEST_FOLDER": str(folder), "EVENTBUS_URL": url}
        self._folder = folder
        self._app = app
        self.workers: list[Program] = []
        """All there ever were."""
        self.killed: set[int] = set()
        """The ids of the processes that were killed."""
        self.spared = 0
        """Kills left out, because fewer than two were up."""
        self._current = [self._start() for _ in range(size)]

    @property
    def kills(self) -> int:
        return len(self.killed)

    def kill(self, rng: random.Random) -> None:
        """`kill -9` one of those that work, and start another in its place.

        Not the last one: where starting takes longer than a second, nobody would ever work.
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
        """One of them, one that works if there is any."""
        return self._current[rng.choice(self._ready() or range(len(self._current)))]

    def end(self) -> list[int]:
        """Tell all to end, and return how they did."""
        for worker in self._current:
            worker.wait_logged("worker ready")  # before that a signal has its plain meaning
            worker.send(signal.SIGTERM)
        return [worker.wait_ended() for worker in self._current]

    def close(self) -> None:
        """Kill what is left."""
        for worker in self.workers:
            worker.kill()

    def complaints(self) -> list[str]:
        """What they logged that should not be."""
        return [str(entry)[:1000] for worker in self.workers for entry in worker.complaints()]

    def _ready(self) -> list[int]:
        """The places of those that are up."""
        return [place for place, each in enumerate(self._current) if each.logged("worker ready")]

    def _start(self) -> Program:
        words = ["-m", "eventbus", "worker", self._app]
        name = f"worker-{len(self.workers)}"
        worker = Program(name, words, folder=self._folder, environment=self._environment)
        self.workers.append(worker)
        return worker
