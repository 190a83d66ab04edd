"""Load on one shard of a cluster: threads that add jobs, and workers that take turns until each job has
ended.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from checks.history import History
from harness.cluster.adder import Adder
from harness.cluster.caller import ClusterCaller
from harness.cluster.nodes import Cluster
from harness.cluster.worker import Worker
from harness.conditions import WITHIN, wait_until

from eventbus.store.keys import EDITION, Keys

__all__ = ["Load"]

_QUEUES = ("event.one", "event.two")
_THREADS = 3
"""So many of adders, and of workers."""


class Load:
    """Adders and workers, each with a caller and a thread of its own. They end when the block of
    `with` does.
    """

    def __init__(
        self, cluster: Cluster, keys: Keys, *, declared: Sequence[str], follows_ask: bool = False
    ) -> None:
        """Each call declares these keys; callers follow `ASK` or wait."""
        self.history = History()
        self.emitter = "load"
        self._cluster = cluster
        self._keys = keys
        self._declared = declared
        self._follows_ask = follows_ask
        self._callers: list[ClusterCaller] = []
        self._is_enough = threading.Event()
        """Set when nothing more is to be added."""
        self._is_ending = threading.Event()
        """Set when nothing more will be added."""
        self._halt = threading.Event()
        self._adders = [self.adder(f"adder{n}", _QUEUES) for n in range(_THREADS)]
        self._workers = [self.worker(f"worker{n}", _QUEUES) for n in range(_THREADS)]
        self._duties = [*self._adders, *self._workers]
        self._threads = ThreadPoolExecutor(len(self._duties), "load")
        self._adding: list[Future[None]] = []
        self._working: list[Future[None]] = []

    def __enter__(self) -> Self:
        caller = self._caller()
        caller.call("open_shard", [EDITION, self._keys.first_edition])
        caller.call("attend", ["", self.emitter, 600, 1, "", "", ""])
        self._adding = [self._threads.submit(each.run, self._is_enough) for each in self._adders]
        self._working = [self._threads.submit(each.run, self._is_ending) for each in self._workers]
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._is_enough, self._is_ending, self._halt):
            each.set()
        self._threads.shutdown()
        for caller in self._callers:
            caller.close()

    @property
    def refusals(self) -> Counter[str]:
        """What all callers were refused with so far -> how often."""
        return sum((caller.refusals for caller in self._callers), Counter[str]())

    def adder(self, name: str, queues: tuple[str, ...]) -> Adder:
        return Adder(name, self._caller(), self.history, queues=queues, emitter=self.emitter)

    def worker(self, name: str, queues: tuple[str, ...]) -> Worker:
        return Worker(name, self._caller(), self.history, queues=queues)

    def wait_worked(self, port: int, jobs: int) -> None:
        """Wait until this node has added and completed so many jobs of each queue."""
        kinds = [f"{what} {queue}" for queue in _QUEUES for what in ("acknowledged", "completed")]
        count = self.history.count
        self._wait(f"{jobs} jobs on {port}", lambda: all(count(kind, port) >= jobs for kind in kinds))

    def wait_refused(self, word: str) -> None:
        """Wait until each caller is refused in this way once more."""
        callers = [each.caller for each in self._duties]
        before = [caller.refusals[word] for caller in callers]
        self._wait(
            f"each caller is told {word}",
            lambda: all(each.refusals[word] > n for each, n in zip(callers, before, strict=True)),
        )

    def wait_answered(self, port: int, calls: int = 50) -> None:
        """Wait until this node has answered so many calls of each caller."""
        self._wait(
            f"{port} answered each caller",
            lambda: all(each.caller.answered[port] >= calls for each in self._duties),
        )

    def end(self) -> None:
        """Add no more, and wait until there is nothing left to do."""
        for event, futures in ((self._is_enough, self._adding), (self._is_ending, self._working)):
            event.set()
            for future in futures:
                future.result(timeout=WITHIN)

    def _caller(self) -> ClusterCaller:
        """Return a caller; every other one asks the wrong node first."""
        port = self._cluster.nodes[len(self._callers) % 2].port
        caller = ClusterCaller(self._declared, port=port, halt=self._halt, follows_ask=self._follows_ask)
        self._callers.append(caller)
        return caller

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        def is_so() -> bool:
            for future in (*self._adding, *self._working):
                if future.done():
                    future.result()  # raises, because no thread ends by itself
            return condition()

        wait_until(what, is_so, story=lambda: f"{self.refusals}, {self.history.complaints[:10]}")
