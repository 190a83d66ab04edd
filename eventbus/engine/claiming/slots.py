"""The slots of a worker: how many jobs it could take, in all and of each queue. What a call under way may bring counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from eventbus.engine.consumer import Consumer
from eventbus.engine.executor import Executor
from eventbus.store.scripting.turn_rows import TurnQueue

__all__ = ["Slots"]

_BATCH = 200  # jobs in one call: the server serves nobody else while a script runs


class Slots:
    """Counts the jobs that run, and those that calls under way have asked for."""

    def __init__(
        self,
        executor: Executor,
        consumers: Mapping[str, Consumer],
        most: int,
        *,
        is_open: Callable[[], bool],
    ) -> None:
        """At most `most` jobs run. `is_open` says whether any may be taken at all."""
        self._executor = executor
        self._consumers = consumers
        self._most = most
        self._is_open = is_open
        self._looks = 0
        self._asked = 0
        self._asked_of: Counter[str] = Counter()
        self.closed: set[str] = set()
        """Queues of which this worker takes no more jobs, though jobs of them may still run here."""

    @property
    def free(self) -> int:
        """How many jobs this worker could take now."""
        return self._most - len(self._executor.running) - self._asked if self._is_open() else 0

    @property
    def want(self) -> int:
        """How many jobs to ask for: at most half of the slots, because the other lane asks for the other half."""
        return min(max(self.free, 0), max(1, self._most // 2), _BATCH)

    def quota(self, queue: str) -> int:
        """Return how many more jobs of a queue this worker may run now."""
        if queue in self.closed:
            return 0
        limit = max(self._consumers[queue].concurrency, 1 if self._looks else 0)
        return min(limit - self._executor.counts[queue] - self._asked_of[queue], self.free)

    @contextmanager
    def open_each(self) -> Generator[None]:
        """Let each queue have one job meanwhile: one without a free slot could not be asked whether it has a job."""
        self._looks += 1
        try:
            yield
        finally:
            self._looks -= 1

    @contextmanager
    def reserve(self, want: int, queues: Sequence[TurnQueue]) -> Generator[None]:
        """Count `want` slots, and the quotas of the queues, as taken while a call is under way."""
        quotas = {row.queue: row.quota for row in queues}
        self._asked += want
        self._asked_of.update(quotas)
        try:
            yield
        finally:
            self._asked -= want
            self._asked_of.subtract(quotas)
