"""The store's part for those who look: one job, jobs of a queue by state, and how many there are. Writes nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

from eventbus.store.caller import Caller
from eventbus.store.keys import Keys

__all__ = ["Cursor", "InspectionStore", "JobLook", "JobPage", "JobRow"]

_SHARED = ("active", "delayed")
_PLACES = {"waiting": "ready"}
_ALL = 1000


class Cursor(NamedTuple):
    """Where a page ended: the last job that was seen, and its score in the server's set; empty for the start."""

    after: str = ""
    score: str = ""


class JobLook(NamedTuple):
    """What is recorded of a job; `fields` by their names, none for an unknown one. `lease_end` in ms, 0 for none."""

    fields: dict[str, str]
    body: str
    text: str
    progress: str
    log: list[str]
    lease_end: int


class JobRow(NamedTuple):
    """A job in a list; times in ms, 0 for none. `text` is the error of one that failed or was cancelled."""

    id: str
    attempts: int
    stalls: int
    created: int
    due: int
    claimed: int
    ended: int
    text: str


class JobPage(NamedTuple):
    """Some jobs; `cursor` is where the next page begins, None after the last."""

    jobs: list[JobRow]
    cursor: Cursor | None


class InspectionStore:
    """Looks at one shard."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def job(self, job: str, *, deadline: float | None = None) -> JobLook:
        """Look at one job."""
        flat, body, text, progress, log, lease_end = await self._caller.script(
            "job", [job], deadline=deadline
        )
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        return JobLook(fields, body, text, progress, log, round(float(lease_end or 0)))

    async def jobs(
        self, queue: str, state: str, *, cursor: Cursor, limit: int, deadline: float | None = None
    ) -> JobPage:
        """Look at some jobs of a queue in one state; a page may have fewer than `limit` though more follow."""
        after, score, _, flat = await self._list(queue, state, cursor, limit, has_rows=1, deadline=deadline)
        rows = [_row(flat[i : i + 8]) for i in range(0, len(flat), 8)]
        return JobPage(rows, Cursor(after, score) if after else None)

    async def count(self, queue: str, state: str, *, deadline: float | None = None) -> int:
        """Count the jobs of a queue in one state, in bounded calls; of `waiting-children` the roots."""
        if state not in (*_SHARED, "waiting-children"):
            name = self._keys.of(_PLACES.get(state, state), queue)
            return await self._caller.command("ZCARD", name, deadline=deadline)
        count, cursor = 0, Cursor()
        while True:
            *following, found, _ = await self._list(queue, state, cursor, _ALL, has_rows=0, deadline=deadline)
            count, cursor = count + found, Cursor(*following)
            if not cursor.after:
                return count

    async def _list(
        self, queue: str, state: str, cursor: Cursor, limit: int, *, has_rows: int, deadline: float | None
    ) -> list[Any]:
        arguments: list[Any] = [queue, state, cursor.after, cursor.score, limit, has_rows]
        return await self._caller.script("list", arguments, deadline=deadline)


def _row(flat: list[str]) -> JobRow:
    job, attempts, stalls, created, due, claimed, ended, text = flat
    counted = (_number(attempts), _number(stalls))
    return JobRow(job, *counted, _number(created), _number(due), _number(claimed), _number(ended), text)


def _number(text: str) -> int:
    """A number of a record, which may be damaged: then 0."""
    return int(text) if text.isdecimal() else 0
