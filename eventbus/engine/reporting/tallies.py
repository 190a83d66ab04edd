"""The tallies of a worker: what it counts of each queue in memory, until the server has it.

Counted when a job is decided: how it ended, how long it waited for its first start, and how long it ran.
Durations are counted by whole ms and put into buckets later, once for each different duration. To time a job
costs more than to count it. So of a queue with more than 1024 ends since the last call, which is 5 s, each
eighth is timed and stands for eight. Not here: how the server gets the tallies (`history_recorder`), and what
ends without a settle of a worker (`store/lua/lib/cells.lua`).

What must always hold: each end that the server records is counted once, by the worker that settled it. A
settle that is refused is taken back; so a count may be below 0 for a while, and is kept here until it is not.
"""

from __future__ import annotations

from eventbus.engine.job import Job, Settle
from eventbus.model import clock
from eventbus.model.histogram import bucket_of
from eventbus.store.calls.history_store import CANCELLED, COMPLETED, EXPIRED, FAILED, RETRIED, RUNS, WAITS
from eventbus.store.scripting.script_rows import SettleRow

_CODES = {"completed": COMPLETED, "failed": FAILED, "cancelled": CANCELLED}
_EXPIRED = '"type":"EmissionExpired"'
_EXACT = 1024
_EACH = 8
"""Powers of two: so many ends are timed, then each eighth."""


def _code_of(state: str, text: str) -> int:
    return EXPIRED if state == "failed" and _EXPIRED in text else _CODES[state]


class _Tally:
    """What was counted of one queue since the last call."""

    __slots__ = ("counts", "ends", "others", "runs", "waits", "weight")

    def __init__(self) -> None:
        self.ends: int = 0
        self.others: int = 0
        """Those ends that are no completions."""
        self.weight: int = 1
        """For how many ends one that is timed stands."""
        self.waits: dict[int, int] = {}
        self.runs: dict[int, int] = {}
        """By ms: those that were timed since `fold`."""
        self.counts: dict[int, int] = {}
        """By code: all else."""

    def add(self, code: int, count: int) -> None:
        self.counts[code] = self.counts.get(code, 0) + count

    def note_other(self, settle: Settle) -> bool:
        """Count what did not complete; return whether an attempt has ended."""
        state = settle.state
        code = _code_of(state, settle.text) if state in ("failed", "cancelled") else RETRIED
        if code == RETRIED and not (state == "delayed" and settle.counts):
            return False
        self.add(code, 1)
        if code == EXPIRED:
            return False  # it did not start
        self.others += 1
        return True

    def fold(self) -> None:
        """Put the durations into their buckets."""
        for base, durations in ((WAITS, self.waits), (RUNS, self.runs)):
            for ms, count in durations.items():
                self.add(base + bucket_of(ms), count * self.weight)
            durations.clear()
        self.weight = _EACH


class Tallies:
    """What one worker counted since its tallies were taken last."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def note(self, job: Job, settle: Settle) -> None:
        """Count the end of an attempt. What is given back, put off, parked or asleep has not ended."""
        tally = self._tallies.get(job.queue)
        if tally is None:
            tally = self._tallies[job.queue] = _Tally()
        if settle.state != "completed" and not tally.note_other(settle):
            return
        ends = tally.ends = tally.ends + 1
        if ends > _EXACT and ends % _EACH:
            return
        ran, runs = int((clock.monotonic() - job.began) * 1000), tally.runs
        runs[ran] = runs.get(ran, 0) + 1
        if not (job.attempts or job.stalls or job.has_begun or job.stop):
            waited, waits = job.claimed_ms - job.due_ms, tally.waits
            waits[waited] = waits.get(waited, 0) + 1
        if not ends % _EXACT:
            tally.fold()

    def take_back(self, queue: str, row: SettleRow) -> None:
        """Count an end no more, because its settle was refused. The run itself stays counted."""
        if row.state in _CODES:
            self._tallies.setdefault(queue, _Tally()).add(_code_of(row.state, row.text), -1)

    def take(self) -> dict[str, dict[int, int]]:
        """Take what was counted since the last call: queue -> code -> count, all above 0."""
        taken: dict[str, dict[int, int]] = {}
        before, self._tallies = self._tallies, {}
        for queue, tally in before.items():
            tally.fold()
            tally.add(COMPLETED, tally.ends - tally.others)
            counts = {code: count for code, count in tally.counts.items() if count > 0}
            if counts:
                taken[queue] = counts
            owed = {code: count for code, count in tally.counts.items() if count < 0}
            if owed:
                self._tallies[queue] = _Tally()
                self._tallies[queue].counts = owed
        return taken
