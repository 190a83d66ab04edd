"""The settles of a worker that are not answered yet: those that wait for a turn, and those under way.

What must always hold: a job stands in `unsettled` from its end until its settle is answered, so that its
lease is kept; a settle whose call failed is sent again; who listens to failures hears of a failed job after
its settle was answered, and of none whose lease was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from eventbus.engine.job import Job, Settle
from eventbus.engine.reporting.failure_listener import FailureListener
from eventbus.engine.reporting.job_meter import note_lost
from eventbus.engine.reporting.tallies import Tallies
from eventbus.model import clock
from eventbus.store.bounds import CALL_BYTES, CALL_ROWS
from eventbus.store.scripting.script_rows import LeaseRow, SettleRow
from eventbus.telemetry.change import ChangeKind, shorten
from eventbus.telemetry.listeners import Teller
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.worker")

_KINDS: dict[str, ChangeKind] = {
    "completed": "completed", "failed": "failed", "cancelled": "cancelled", "delayed": "delayed",
    "waiting": "returned", "shelved": "returned", "parked": "parked", "suspended": "suspended",
}  # fmt: skip


class SettleQueue:
    """Settles with the queues of their jobs, in the order in which the jobs ended."""

    def __init__(
        self, cost: Callable[[str], int], tallies: Tallies | None = None, teller: Teller | None = None
    ) -> None:
        """`cost` says for how many plain jobs a job of a queue counts. `tallies` count what ends, if they are
        given. `teller` hears what the server has recorded.
        """
        self._teller = teller or Teller()
        self._retries: set[LeaseRow] = set()
        """The unsettled jobs whose attempt counts and is not the last one."""
        self.unsettled: set[LeaseRow] = set()
        """The jobs that ended here and whose settle is not answered yet."""
        self.refused: int = 0
        """How many settles the server refused because their lease was lost."""
        self.failures: FailureListener | None = None
        """Hears of the jobs that failed; None if nobody wants to know."""
        self._failing: dict[LeaseRow, Job] = {}
        self._resent: set[LeaseRow] = set()
        """Of these failing jobs a call may have been carried out whose answer never came."""
        self._waiting: deque[tuple[str, SettleRow]] = deque()
        self._cost = cost
        self._tallies = tallies

    def __len__(self) -> int:
        """Return how many settles wait for a turn."""
        return len(self._waiting)

    def begin(self, job: Job, settle: Settle) -> SettleRow:
        """Note a job that ended, and return the row that settles it."""
        # The server always writes the count of a delayed job, so one that did not count sends the old number.
        kept = job.attempts if settle.state == "delayed" else ""
        attempts = job.attempts + 1 if settle.counts else kept
        lease = LeaseRow(job.id, job.token)
        self.unsettled.add(lease)
        if self._tallies is not None:
            self._tallies.note(job, settle)
        if settle.state == "failed" and self.failures is not None:
            self._failing[lease] = job
        if self._teller.is_on and settle.counts and settle.state == "delayed":
            self._retries.add(lease)
        return SettleRow(job.id, job.token, settle.state, attempts, settle.text, settle.delay_ms)

    def put(self, queue: str, row: SettleRow) -> None:
        """Have a turn settle a job that `begin` noted."""
        self._waiting.append((queue, row))

    def take(self) -> list[tuple[str, SettleRow]]:
        """Take as many settles as one call may have."""
        chosen: list[tuple[str, SettleRow]] = []
        size = cost = 0
        while self._waiting and cost < CALL_ROWS and size < CALL_BYTES:
            settle = self._waiting.popleft()
            size += len(settle[1].text)
            cost += self._cost(settle[0])
            chosen.append(settle)
        return chosen

    def put_back(self, settles: Sequence[tuple[str, SettleRow]]) -> None:
        """Put settles back that were taken, because their call failed."""
        self._waiting.extendleft(reversed(settles))
        if self._failing:
            leases = (LeaseRow(row.id, row.token) for _, row in settles)
            self._resent.update(lease for lease in leases if lease in self._failing)

    def answered(self, queue: str, row: SettleRow, *, is_lost: bool) -> None:
        """Note that the server answered a settle; if the lease was lost, the settle was refused, which is
        logged.
        """
        lease = LeaseRow(row.id, row.token)
        self.unsettled.discard(lease)
        if is_lost:
            self._note_refused(queue, row)
        elif self._teller.is_on:
            self._tell(queue, row)
        if self._retries:
            self._retries.discard(lease)
        failed = self._failing.pop(lease, None) if self._failing else None
        if failed is None or self.failures is None:
            return
        is_resent = lease in self._resent
        self._resent.discard(lease)
        if is_resent or not is_lost:
            self.failures.note(failed, row.text, is_doubtful=is_lost)

    def _tell(self, queue: str, row: SettleRow) -> None:
        is_retry = LeaseRow(row.id, row.token) in self._retries
        what = "retried" if is_retry else _KINDS[row.state]
        state = row.state if row.state in ("completed", "failed", "cancelled", "parked") else "waiting"
        given: dict[str, Any] = (
            {"note": shorten(row.text)} if row.state in ("failed", "delayed", "parked") else {}
        )
        if row.state in ("delayed", "suspended") and row.delay > 0:
            state, given["due_ms"] = "delayed", round(clock.now() * 1000) + row.delay
        elif row.state == "suspended" and row.delay < 0:
            state = "waiting-children"
        if is_retry:
            given["attempt"] = int(row.attempts)
        self._teller.tell(what, queue, row.id, state=state, **given)

    def note_apart(self, jobs: Sequence[str]) -> None:
        """Log the jobs that the server ended as failed in a turn, because their records cannot be read."""
        for job_id in jobs:
            _log.error("job failed, its record cannot be read", job_id=job_id)
            if self.failures is not None:
                self.failures.note_unseen(job_id)

    def _note_refused(self, queue: str, row: SettleRow) -> None:
        if row.state != "waiting":  # a job that was to be given back has been given back already
            self.refused += 1
            note_lost(queue)
            _log.warning("outcome refused: the lease was lost", job_id=row.id)
            if self._tallies is not None:
                self._tallies.take_back(queue, row)
