"""The settles of a worker that are not answered yet: those that wait for a turn, and those under way.

What must always hold: a job stands in `unsettled` from its end until its settle is answered, so that its lease is
kept; a settle whose call failed is sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from eventbus.engine.metering.job_meter import note_lost
from eventbus.store.scripting.script_rows import LeaseRow
from eventbus.store.scripting.turn_rows import SettleRow
from eventbus.telemetry.logging import get_logger

__all__ = ["SettleQueue"]

_log = get_logger("eventbus.worker")

_MOST = 200  # plain jobs in one call: the server serves nobody else while a script runs
_BYTES = 1 << 20  # of settled texts in one call


class SettleQueue:
    """Settles with the queues of their jobs, in the order in which the jobs ended."""

    def __init__(self, cost: Callable[[str], int]) -> None:
        """`cost` says for how many plain jobs a job of a queue counts."""
        self.unsettled: set[LeaseRow] = set()
        """The jobs that ended here and whose settle is not answered yet."""
        self.refused: int = 0
        """How many settles the server refused because their lease was lost."""
        self._waiting: deque[tuple[str, SettleRow]] = deque()
        self._cost = cost

    def __len__(self) -> int:
        """Return how many settles wait for a turn."""
        return len(self._waiting)

    def begin(self, row: SettleRow) -> None:
        """Note a job that ended."""
        self.unsettled.add(LeaseRow(row.id, row.token))

    def put(self, queue: str, row: SettleRow) -> None:
        """Have a turn settle a job that `begin` noted."""
        self._waiting.append((queue, row))

    def take(self) -> list[tuple[str, SettleRow]]:
        """Take as many settles as one call may have."""
        chosen: list[tuple[str, SettleRow]] = []
        size = cost = 0
        while self._waiting and cost < _MOST and size < _BYTES:
            settle = self._waiting.popleft()
            size += len(settle[1].text)
            cost += self._cost(settle[0])
            chosen.append(settle)
        return chosen

    def put_back(self, settles: Sequence[tuple[str, SettleRow]]) -> None:
        """Put settles back that were taken, because their call failed."""
        self._waiting.extendleft(reversed(settles))

    def answered(self, row: SettleRow) -> None:
        """Note that the server answered a settle."""
        self.unsettled.discard(LeaseRow(row.id, row.token))

    def note_refused(self, queue: str, row: SettleRow) -> None:
        """Note and log a settle that was refused; a job that was to be given back has been given back already."""
        if row.state != "waiting":
            self.refused += 1
            note_lost(queue)
            _log.warning("outcome refused: the lease was lost", job_id=row.id)
