"""The slots of a worker: how many jobs it could take, in all and of each queue. What a call under way may
bring counts.

A job takes a slot, but the jobs of one call of a batch handler take one together (`SharingConsumer`). A turn
asks such a queue alone (`apart`), because the answer of a turn that asks several may come from any of them.
So each batch is claimed whole, whatever else the worker runs, and its jobs leave the slots of other queues
free.

What must always hold: the jobs that run, and those that turns under way may bring, have slots; two turns
under way may bring one batch more than that if a batch began between them. A worker without batch handlers
pays one look at an empty dictionary a turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager

from eventbus.engine.consumer import Consumer, SharedSlots, SharingConsumer
from eventbus.engine.executor import Executor
from eventbus.store.bounds import CALL_ROWS
from eventbus.store.scripting.script_rows import TurnQueue


class Slots:
    """Counts the jobs that run, and those that calls under way have asked for."""

    def __init__(
        self, executor: Executor, consumers: Mapping[str, Consumer], most: int, *, is_open: Callable[[], bool]
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
        self.sharing: dict[str, SharedSlots] = {}
        """Queues whose jobs share slots."""

    def note_sharing(self, queue: str) -> None:
        """Note whether the jobs of a queue share slots, from its consumer."""
        consumer = self._consumers[queue]
        if isinstance(consumer, SharingConsumer):
            self.sharing[queue] = consumer.gathering
        else:
            self.sharing.pop(queue, None)

    @property
    def free(self) -> int:
        """How many jobs this worker could take now."""
        if not self._is_open():
            return 0
        free = self._most - len(self._executor.running) - self._asked
        if self.sharing:
            counts = self._executor.counts
            free += sum(counts[queue] - each.slots_of(counts[queue]) for queue, each in self.sharing.items())
        return free

    @property
    def want(self) -> int:
        """How many jobs to ask for: at most half of the slots, because the other lane asks for the other
        half.
        """
        return min(max(self.free, 0), max(1, self._most // 2), CALL_ROWS)

    def want_of(self, asked: Sequence[str]) -> int:
        """Return how many jobs to ask for in a turn that asks these queues; see `apart`."""
        is_apart = bool(self.sharing) and len(asked) == 1 and asked[0] in self.sharing
        return max(0, min(self.quota(asked[0]), CALL_ROWS)) if is_apart else self.want

    def apart(self, queues: list[str]) -> list[str]:
        """Return those of these queues that one turn may ask together: the first alone if its jobs share
        slots.
        """
        if not self.sharing:
            return queues
        if queues and queues[0] in self.sharing:
            return queues[:1]
        return [queue for queue in queues if queue not in self.sharing]

    def with_followers(self, asked: list[str], settled: Iterable[str]) -> list[str]:
        """Return the queues to ask, with those that settles of jobs of `settled` may fill: they need no
        second call.
        """
        if self.free <= 0 or (self.sharing and not self.sharing.keys().isdisjoint(asked)):
            return asked
        follow = {follower for queue in settled for follower in self._consumers[queue].follows}
        return [*asked, *(follower for follower in follow.difference(asked) if self.quota(follower) > 0)]

    def quota(self, queue: str) -> int:
        """Return how many more jobs of a queue this worker may run now."""
        if queue in self.closed:
            return 0
        limit = max(self._consumers[queue].concurrency, 1 if self._looks else 0)
        taken = self._executor.counts[queue] + self._asked_of[queue]
        if queue in self.sharing:
            room = self.sharing[queue].room_for(taken, self.free) if self._is_open() else 0
            return min(limit - taken, room)
        return min(limit - taken, self.free)

    @contextmanager
    def open_each(self) -> Generator[None]:
        """Let each queue have one job meanwhile: one without a free slot could not be asked whether it has a
        job.
        """
        self._looks += 1
        try:
            yield
        finally:
            self._looks -= 1

    @contextmanager
    def reserve(self, want: int, queues: Sequence[TurnQueue]) -> Generator[None]:
        """Count `want` slots, and the quotas of the queues, as taken while a call is under way."""
        quotas = {row.queue: row.quota for row in queues}
        if self.sharing:
            want = self._slots_asked(want, quotas)
        self._asked += want
        self._asked_of.update(quotas)
        try:
            yield
        finally:
            self._asked -= want
            self._asked_of.subtract(quotas)

    def _slots_asked(self, want: int, quotas: Mapping[str, int]) -> int:
        """Return how many slots the jobs of a turn need: those of a queue that shares them need fewer than
        one each.
        """
        asked = [queue for queue, quota in quotas.items() if quota > 0]
        if len(asked) != 1 or asked[0] not in self.sharing:
            return want
        each, taken = self.sharing[asked[0]], self._executor.counts[asked[0]] + self._asked_of[asked[0]]
        return max(0, each.slots_of(taken + quotas[asked[0]]) - each.slots_of(taken))
