"""The appends of a worker that are not answered yet: what its jobs add to their journals, by rows of its
turns.

What a job appends while a row of it is under way goes with its next row, so a job has at most one row under
way. The two lanes of a worker could otherwise bring its entries in the wrong order.

What must always hold:
- `job.journal` has what the server has recorded, and only that, from the answer on; a job that
  keeps the newest entries alone has none of them here, and counts them;
- a row whose call failed is sent again as it was: the server knows a repeat by the place and the
  entries of a row;
- whoever waits for an append hears of it, at the latest when the worker ends.

Crash windows: `append-not-answered` (the turn is made again), `append-given-up` (the call failed: the same
row goes with another turn), `lost-in-failover` (the server says how many entries it has: the row grows by
those that it lost; a job that keeps the newest entries alone has lost its lease, because what it needs is in
the live texts of those rows).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from eventbus.engine.job import Job
from eventbus.errors import ProviderStopped
from eventbus.store.bounds import CALL_BYTES, CALL_ROWS
from eventbus.store.scripting.packing import Append
from eventbus.store.scripting.script_rows import AppendRefusal

_CUT = "#cut"  # the live text that says how many of the first entries are gone (`appends.lua`)
_TEXTS = 500  # from so many on, what a job appends next gets a row of its own


class _Part:
    """What one job appends with one row, and who waits for the answer."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.live: dict[str, str] = {}
        self.taken: list[str] = []
        self.waiters: list[asyncio.Future[str]] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.entries) + len(self.live) + len(self.taken) >= _TEXTS or self._bytes >= CALL_BYTES

    def put(self, entries: Sequence[str], live: Mapping[str, str], taken: Sequence[str]) -> None:
        self.entries += entries
        self.live |= live
        self.taken += taken
        self._bytes += sum(map(len, entries)) + sum(map(len, live.values()))


class _Series:
    """The appends of one job: a row that is under way or is to be sent again, and what comes after it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.row: Append | None = None
        self.sent = _Part()
        self.later: deque[_Part] = deque()

    def open_part(self) -> _Part:
        """Return the part that takes what is appended now."""
        if not self.later or self.later[-1].is_full:
            self.later.append(_Part())
        return self.later[-1]

    def make_row(self) -> Append:
        if self.row is None:
            part, job = self.later.popleft(), self.job
            self.sent, place = part, job.passed + len(job.journal)
            if job.keeps:
                part.live[_CUT] = str(max(0, place + len(part.entries) - job.keeps))
            self.row = Append(job.id, job.token, place, part.entries, part.live, part.taken)
        return self.row

    def restore(self, length: int) -> None:
        """Have the row bring the entries, too, that the server had and lost behind the first `length`."""
        self.sent.entries[:0] = self.job.journal[length:]
        del self.job.journal[length:]
        part = self.sent
        self.row = Append(self.job.id, self.job.token, length, part.entries, part.live, part.taken)

    def end(self, word: str) -> None:
        """Tell those who wait for the row."""
        if word in ("ok", "stopping"):
            if self.job.keeps:
                self.job.passed += len(self.sent.entries)
            else:
                self.job.journal += self.sent.entries
            if self.sent.entries:
                self.job.attempts = self.job.stalls = 0  # the server forgot them
        for waiter in self.sent.waiters:
            if not waiter.done():
                waiter.set_result(word)
        self.row = None


class AppendQueue:
    """The series of all jobs, in the order in which they wait for a turn."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        """The token and the id of a job -> its series, while there is anything in it."""
        self._waiting: deque[_Series] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many jobs have something for a turn."""
        return len(self._waiting)

    def put(
        self, job: Job, entries: Sequence[str], *, live: Mapping[str, str], taken: Sequence[str]
    ) -> asyncio.Future[str]:
        """Append entries, live texts by name, and the signals that the entries take over.

        The future gets `ok`, `stopping` (appended, but the job's tree stops), `lost` (the lease) or `torn`
        (the journal has other entries). Raises ProviderStopped after `close`.
        """
        if self._is_closed:
            raise _ended(job)
        series = self._series.get(_name(job))
        if series is None:
            series = self._series[_name(job)] = _Series(job)
            self._waiting.append(series)
        part = series.open_part()
        part.put(entries, live, taken)
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        part.waiters.append(waiter)
        return waiter

    def take(self) -> list[Append]:
        """Take as many rows as one call may have."""
        rows: list[Append] = []
        size = 0
        while self._waiting and len(rows) < CALL_ROWS and size < CALL_BYTES:
            row = self._waiting.popleft().make_row()
            size += sum(map(len, row.entries)) + sum(map(len, row.live.values()))
            rows.append(row)
        return rows

    def put_back(self, rows: Sequence[Append]) -> None:
        """Put rows back that were taken, because their call failed."""
        self._waiting.extendleft(self._series[_name(row)] for row in reversed(rows))

    def answered(self, rows: Sequence[Append], refusals: Sequence[AppendRefusal]) -> None:
        """Note what became of the rows of a call."""
        refused = {each.place: each for each in refusals}
        for place, row in enumerate(rows, 1):
            series = self._series[_name(row)]
            refusal = refused.get(place)
            if refusal is not None and refusal.word == "behind" and not series.job.keeps:
                series.restore(refusal.length)
                self._waiting.append(series)
                continue
            word = "ok" if refusal is None else refusal.word
            series.end("lost" if word == "behind" else word)
            if series.later:
                self._waiting.append(series)
            else:
                del self._series[_name(series.job)]

    def close(self) -> None:
        """Tell everybody who still waits that the worker has ended."""
        self._is_closed = True
        for series in self._series.values():
            for part in (series.sent, *series.later):
                for waiter in part.waiters:
                    if not waiter.done():
                        waiter.set_exception(_ended(series.job))
        self._series.clear()
        self._waiting.clear()


def _name(job: Job | Append) -> str:
    return f"{job.token} {job.id}"


def _ended(job: Job) -> ProviderStopped:
    return ProviderStopped(
        f"the worker ended before the server answered an append of job {job.id}", job_id=job.id
    )
