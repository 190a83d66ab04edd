"""Which queues a worker asks next.

A queue is `hot` from a wake, or from an answer that left jobs in it, until an answer
says it is empty. An answer says so only of the time it was made: a wake that came while a
queue was being asked counts more, for it may have overtaken the answer.

Turns name the hot queues in rotation: one that gave jobs goes to the end, one that was
asked in vain keeps its place, so none waits for more than those before it. A queue that one
call asks on a guess is not asked by a second one at the same time; one with a backlog is.
A wake for a queue that this worker has no slot for is `owed` to other workers; a look that
nobody asked for is not, for they look as well.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable

__all__ = ["Agenda"]


class Agenda:
    """The queues with work, as far as this worker knows."""

    def __init__(self, quota: Callable[[str], int]) -> None:
        """`quota(queue)` is how many more jobs of it this worker may run."""
        self._quota = quota
        self._hot: dict[str, bool] = {}
        """Queue -> whether an answer left jobs in it (else it is a guess)."""
        self._noted: set[str] = set()
        """Queues that were noted since they were last asked."""
        self._asked: Counter[str] = Counter()
        """Queues in calls under way."""
        self._owed: set[str] = set()

    @property
    def has_owed(self) -> bool:
        """Whether wakes wait to be put back."""
        return bool(self._owed)

    def note(self, queues: Iterable[str]) -> None:
        """Somebody said that there may be work in these queues."""
        for queue in queues:
            self.look_at(queue)
            if self._quota(queue) <= 0:
                self._owed.add(queue)

    def look_at(self, queue: str) -> None:
        """Ask this queue once, whether or not there is work in it."""
        self._hot.setdefault(queue, False)
        self._noted.add(queue)

    def choose(self, limit: int, want: int = sys.maxsize) -> list[str]:
        """Up to `limit` hot queues that this worker has slots for and that are worth a call.

        No more than may well give the `want` jobs: many jobs of few queues cost less than one of each.
        """
        chosen: list[str] = []
        expected = 0
        for queue, is_backlog in self._hot.items():
            if (is_backlog or not self._asked[queue]) and (quota := self._quota(queue)) > 0:
                chosen.append(queue)
                expected += quota if is_backlog else 1
                if len(chosen) == limit or expected >= 2 * want:
                    break
        return chosen

    def ask(self, queues: Collection[str]) -> None:
        """These queues are about to be asked; what is noted from here on is news."""
        self._noted.difference_update(queues)
        self._asked.update(queues)

    def unanswered(self, asked: Collection[str]) -> None:
        """The call that asked these has failed; they stay as they were."""
        self._asked.subtract(asked)

    def answered(self, asked: Collection[str], more: Iterable[str], gave: Collection[str]) -> None:
        """`asked` were named in a turn; those in `more` still have jobs; those in `gave` gave some."""
        self._asked.subtract(asked)
        left = set(more)
        for queue in asked:
            self._owed.discard(queue)
            if queue in gave or not (queue in left or queue in self._noted):
                self._hot.pop(queue, None)
            if queue in left or queue in self._noted:
                self._hot[queue] = queue in left

    def take_owed(self) -> list[str]:
        """The queues whose wakes are to be put back for other workers."""
        owed = [queue for queue in self._owed if self._quota(queue) <= 0]
        self._owed.clear()
        return owed

    def take_all(self) -> list[str]:
        """Every queue that may have work; for the workers that stay when this one stops."""
        queues = [*self._hot, *self._owed.difference(self._hot)]
        self._hot.clear()
        self._owed.clear()
        return queues
