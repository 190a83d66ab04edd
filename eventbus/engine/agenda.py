"""Which queues a worker asks next.

A queue is `hot` from a wake, or from an answer that left jobs in it, until an answer
says it is empty. An answer says so only of the time it was made: a wake that came while a
queue was being asked counts more, for it may have overtaken the answer. Turns name the hot queues in rotation, so none waits behind another.
A wake for a queue that this worker has no slot for is `owed` to other workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
        self._owed: set[str] = set()

    @property
    def has_owed(self) -> bool:
        """Whether wakes wait to be put back."""
        return bool(self._owed)

    def note(self, queues: Iterable[str]) -> None:
        """There may be work in these queues."""
        for queue in queues:
            self._hot.setdefault(queue, False)
            self._noted.add(queue)
            if self._quota(queue) <= 0:
                self._owed.add(queue)

    def choose(self, limit: int, *, only_backlog: bool = False) -> list[str]:
        """Up to `limit` hot queues that this worker has slots for, the longest unasked first.

        `only_backlog` leaves out those of which only a wake is known.
        """
        chosen: list[str] = []
        for queue, is_backlog in self._hot.items():
            if (is_backlog or not only_backlog) and self._quota(queue) > 0:
                chosen.append(queue)
                if len(chosen) == limit:
                    break
        return chosen

    def ask(self, queues: Iterable[str]) -> None:
        """These queues are about to be asked; what is noted from here on is news."""
        self._noted.difference_update(queues)

    def answered(self, asked: Iterable[str], more: Iterable[str]) -> None:
        """`asked` were named in a turn; those in `more` still have jobs, and go to the end."""
        left = set(more)
        for queue in asked:
            self._hot.pop(queue, None)
            self._owed.discard(queue)
            if queue in left:
                self._hot[queue] = True
            elif queue in self._noted:
                self._hot[queue] = False

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
