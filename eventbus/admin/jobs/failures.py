"""Failures by their error: the same error with other numbers is one group.

The failed jobs are read when somebody looks, so that a failure costs nothing more, and a group tells of jobs
that are there. What must hold: of each queue a bounded number of jobs is read, the newest ones, in bounded
calls.
"""

from __future__ import annotations

import msgspec

from eventbus.store.bounds import PAGE_JOBS
from eventbus.store.calls.error_text import HEAD_BYTES, error_of, fold
from eventbus.store.calls.queries import Cursor
from eventbus.store.store import Store

_MOST = 10_000
"""So many failed jobs of each queue are read."""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The failed jobs of one queue that have the same error.

    `error` is its type and message, one line, with `#` for each number and hexadecimal id; `retry_all` takes
    it. `count` is how many jobs there are. `newest_ms` and `oldest_ms` are when the newest and the oldest of
    them ended (Unix times in ms); `sample` is the id of the newest one.
    """

    error: str
    queue: str
    count: int
    newest_ms: int
    oldest_ms: int
    sample: str


async def group_failures(store: Store, queue: str, deadline: float) -> list[FailureGroup]:
    """Return the failed jobs of one queue by their error."""
    found: dict[str, tuple[int, int, int, str]] = {}
    place: Cursor | None = Cursor()
    seen, folded = 0, dict[str, str]()
    while place is not None and seen < _MOST:
        page = await store.inspection.jobs(
            queue, "failed", cursor=place, limit=PAGE_JOBS, text_bytes=HEAD_BYTES, deadline=deadline
        )
        for row in page.jobs:
            raw = error_of(row.text)
            error = folded.get(raw) or folded.setdefault(raw, fold(raw))
            count, newest, oldest, sample = found.get(error, (0, row.ended, row.ended, row.id))
            if row.ended > newest:
                newest, sample = row.ended, row.id
            found[error] = (count + 1, newest, min(oldest, row.ended), sample)
        seen, place = seen + len(page.jobs), page.cursor
    return [
        FailureGroup(error=error, queue=queue, count=count, newest_ms=newest, oldest_ms=oldest, sample=sample)
        for error, (count, newest, oldest, sample) in found.items()
    ]
