"""The jobs that a bulk operation is about, some at a time, from a place that can be kept as text.

A page is read before its jobs leave their place. So the place stands behind jobs that are gone, and the next
page goes on from there. What must always hold: the work of one call to the server is bounded, and a job that
comes to its state after the operation began is in no page.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from eventbus.store.bounds import HEAVY_ROWS
from eventbus.store.calls.error_text import HEAD_BYTES, error_of, fold, is_of
from eventbus.store.calls.operation_store import OperationRecord
from eventbus.store.calls.queries import Cursor, JobRow
from eventbus.store.store import Store

_COUNTED = 10_000
"""So many jobs are looked at when they are counted."""
_SAMPLES = 20


class OperationPage(NamedTuple):
    """The ids of the jobs of a page that are meant, and the place behind it; None at the end."""

    jobs: list[str]
    cursor: str | None


class JobCount(NamedTuple):
    """How many jobs are meant, with the ids of some. There may be more if it is not `is_exact`."""

    total: int
    is_exact: bool
    samples: list[str]


async def read_page(
    store: Store, record: OperationRecord, cursor: str, *, deadline: float | None = None
) -> OperationPage:
    """Return the jobs that follow a place; `''` is the first one."""
    if record.jobs:
        return _read_named(record, cursor)
    page = await store.inspection.jobs(
        record.queue,
        record.of,
        cursor=_place(cursor),
        limit=HEAVY_ROWS,
        text_bytes=HEAD_BYTES if record.error else 1,  # 0 is all
        deadline=deadline,
    )
    following = None if page.cursor is None else msgspec.json.encode(page.cursor).decode()
    return OperationPage([row.id for row in page.jobs if _is_meant(row, record)], following)


async def count_jobs(store: Store, record: OperationRecord, *, deadline: float | None = None) -> JobCount:
    """Count the jobs that are meant, among the first 10,000 of their queue and state."""
    count, looked_at, samples = 0, 0, list[str]()
    cursor: str | None = ""
    while cursor is not None and looked_at < _COUNTED:
        page = await read_page(store, record, cursor, deadline=deadline)
        cursor, count, looked_at = page.cursor, count + len(page.jobs), looked_at + HEAVY_ROWS
        samples += page.jobs[: _SAMPLES - len(samples)]
    return JobCount(count, cursor is None, samples)


def _read_named(record: OperationRecord, cursor: str) -> OperationPage:
    named, first = msgspec.json.decode(record.jobs, type=list[str]), int(cursor or 0)
    last = first + HEAVY_ROWS
    return OperationPage(named[first:last], str(last) if last < len(named) else None)


def _place(cursor: str) -> Cursor:
    return msgspec.json.decode(cursor, type=Cursor) if cursor else Cursor()


def _is_meant(row: JobRow, record: OperationRecord) -> bool:
    if record.error and not is_of(fold(error_of(row.text)), record.error):
        return False
    return (row.ended or row.created) <= record.before
