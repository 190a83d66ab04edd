"""The queue rotation of a worker: which queues its next turn asks.

A queue becomes `hot` by a wake, or by an answer that left jobs in it. It stays hot until an answer
says that it is empty. An answer is only true for the moment when the server made it. So a wake that
came while the queue was being asked wins, because the wake may have overtaken the answer.

Turns ask the hot queues in rotation. A queue that gave jobs goes to the end, and a queue that was
asked in vain keeps its place, so a queue waits only for those before it. While one call asks a queue
on a guess, a second call does not ask it; a queue with a known backlog is asked by both.

If this worker has no free slot for a woken queue, it passes the wake on to other workers (`owed`).
Periodic polls are not passed on, because every worker polls anyway.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable


class QueueRotation:
    """Keeps the queues that may have work, as far as this worker knows, in the order in which to ask them."""

    def __init__(self, quota: Callable[[str], int]) -> None:
        """`quota(queue)` returns how many more jobs of a queue this worker may run now."""
        self._quota = quota
        self._hot: dict[str, bool] = {}
        """Queue -> whether an answer left jobs in it; False means that its work is a guess."""
        self._noted: set[str] = set()
        """Queues of which news came after the last call that asks them was made."""
        self._asked: Counter[str] = Counter()
        """How many calls under way ask each queue."""
        self._owed: set[str] = set()

    @property
    def has_owed(self) -> bool:
        """Whether wakes wait to be passed on to other workers."""
        return bool(self._owed)

    def has_others(self, queues: Collection[str]) -> bool:
        """Return whether more queues than these may have work."""
        return not self._hot.keys() <= set(queues)

    def note(self, queues: Iterable[str]) -> None:
        """Note that these queues may have work, after a wake."""
        for queue in queues:
            self.look_at(queue)
            if self._quota(queue) <= 0:
                self._owed.add(queue)

    def look_at(self, queue: str) -> None:
        """Have this queue asked once, whether or not it has work."""
        self._hot.setdefault(queue, False)
        self._noted.add(queue)

    def is_asked(self, queue: str) -> bool:
        """Return whether a call is under way that asks a queue."""
        return self._asked[queue] > 0

    def forget(self, queue: str) -> None:
        """Forget a queue that no call asks; it is not asked again."""
        self._hot.pop(queue, None)
        self._noted.discard(queue)
        self._owed.discard(queue)
        del self._asked[queue]

    def choose(self, limit: int, want: int = sys.maxsize) -> list[str]:
        """Return at most `limit` hot queues that have free slots here and that are worth a call.

        Stops at enough queues to give the `want` jobs: many jobs of few queues cost less than few jobs of
        many.
        """
        chosen: list[str] = []
        expected = 0
        for queue, is_backlog in self._hot.items():
            if (is_backlog or not self._asked[queue]) and (quota := self._quota(queue)) > 0:
                chosen.append(queue)
                expected += quota if is_backlog else 1
                # Twice the wanted jobs, because a guess may give none.
                if len(chosen) == limit or expected >= 2 * want:
                    break
        return chosen

    def ask(self, queues: Collection[str]) -> None:
        """Note that a call is about to ask these queues; a later `note` or `look_at` outlasts its answer."""
        self._noted.difference_update(queues)
        self._asked.update(queues)

    def unanswered(self, asked: Collection[str]) -> None:
        """Note that the call that asked these queues failed; they stay hot."""
        self._asked.subtract(asked)

    def answered(self, asked: Collection[str], more: Iterable[str], gave: Collection[str]) -> None:
        """Note the answer of a turn that asked `asked`: queues in `more` still have jobs, those in `gave`
        gave jobs.
        """
        self._asked.subtract(asked)
        left = set(more)
        for queue in asked:
            self._owed.discard(queue)  # the server wakes other workers for a queue in `more`
            if queue in gave or not (queue in left or queue in self._noted):
                self._hot.pop(queue, None)
            if queue in left or queue in self._noted:
                self._hot[queue] = queue in left

    def take_owed(self) -> list[str]:
        """Return the queues whose wakes to pass on, without those that have free slots here, and forget all
        of them.
        """
        owed = [queue for queue in self._owed if self._quota(queue) <= 0]
        self._owed.clear()
        return owed

    def take_all(self) -> list[str]:
        """Return every queue that may have work, and forget them; for the workers that go on when this one
        stops.
        """
        queues = [*self._hot, *self._owed.difference(self._hot)]
        self._hot.clear()
        self._owed.clear()
        return queues
