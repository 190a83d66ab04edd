"""The tallies of a worker: what it counts of each queue in memory, until the server has it.

Counted when a job is decided, which costs a job less than half a microsecond: how it ended, how long it waited for its
first start, and how long it ran. Durations are counted by whole ms and put into buckets when the tallies are taken, once
for each different duration. Not here: how the server gets them (`recorder`), and what ends without a settle of a worker
(`store/lua/lib/cells.lua`).

What must always hold: each end that the server records is counted once, by the worker that settled it. A settle that is
refused is taken back; so a count may be below 0 for a while, and is kept here until it is not.
"""

from __future__ import annotations

from eventbus.engine.job import Job, Settle
from eventbus.model import clock
from eventbus.model.history.histogram import bucket_of
from eventbus.store.history.history_store import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    RETRIED,
    RUNS,
    WAITS,
)
from eventbus.store.scripting.turn_rows import SettleRow

__all__ = ["Tallies"]

_CODES = {"completed": COMPLETED, "failed": FAILED, "cancelled": CANCELLED}
_EXPIRED = '"type":"EmissionExpired"'
_MOST = 2000
"""Different durations of one queue; beyond them a worker puts them into buckets before it is asked."""


def _code_of(state: str, text: str) -> int:
    return EXPIRED if state == "failed" and _EXPIRED in text else _CODES[state]


class _Tally:
    """What was counted of one queue."""

    __slots__ = ("completed", "counts", "runs", "waits")

    def __init__(self) -> None:
        self.completed: int = 0
        self.counts: dict[int, int] = {}
        """By code, without what stands in the other three."""
        self.waits: dict[int, int] = {}
        self.runs: dict[int, int] = {}
        """By ms."""

    def add(self, code: int, count: int) -> None:
        self.counts[code] = self.counts.get(code, 0) + count

    def fold(self) -> None:
        """Put the durations into their buckets."""
        for base, durations in ((WAITS, self.waits), (RUNS, self.runs)):
            for ms, count in durations.items():
                self.add(base + bucket_of(ms), count)
            durations.clear()
        self.add(COMPLETED, self.completed)
        self.completed = 0


class Tallies:
    """What one worker counted since its tallies were taken last."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def note(self, job: Job, settle: Settle) -> None:
        """Count the end of an attempt. What is given back, put off, parked or asleep has not ended."""
        state = settle.state
        tally = self._tallies.get(job.queue)
        if tally is None:
            tally = self._tallies[job.queue] = _Tally()
        if state == "completed":
            tally.completed += 1
        elif state in ("failed", "cancelled"):
            code = _code_of(state, settle.text)
            tally.add(code, 1)
            if code == EXPIRED:
                return  # it did not start
        elif state == "delayed" and settle.counts:
            tally.add(RETRIED, 1)
        else:
            return
        ran = int((clock.monotonic() - job.began) * 1000)
        runs = tally.runs
        runs[ran] = runs.get(ran, 0) + 1
        if not (job.attempts or job.stalls or job.has_begun or job.stop):
            waited = job.claimed_ms - job.due_ms
            waits = tally.waits
            waits[waited] = waits.get(waited, 0) + 1
            if len(runs) + len(waits) > _MOST:
                tally.fold()

    def take_back(self, queue: str, row: SettleRow) -> None:
        """Count an end no more, because its settle was refused. The run itself stays counted."""
        if row.state in _CODES:
            self._tallies.setdefault(queue, _Tally()).add(_code_of(row.state, row.text), -1)

    def take(self) -> dict[str, dict[int, int]]:
        """Take what was counted since the last call: queue -> code -> count, all above 0."""
        taken: dict[str, dict[int, int]] = {}
        for queue, tally in list(self._tallies.items()):
            tally.fold()
            counts = {code: count for code, count in tally.counts.items() if count > 0}
            if counts:
                taken[queue] = counts
            tally.counts = {code: count for code, count in tally.counts.items() if count < 0}
            if not tally.counts:
                del self._tallies[queue]
        return taken
