"""Queries about jobs: one job, the jobs of a queue in one state, and their number. They write nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from eventbus.store.bounds import PAGE_JOBS
from eventbus.store.calls.roster import RosterStore
from eventbus.store.calls.server_store import ServerStore
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys
from eventbus.store.readable import number, readable
from eventbus.store.scripting.script_rows import QueueLook

_EMPTY: list[Any] = ["", "", 0, [], 0]
"""The answer of `list.lua` for a queue that has no job in a state.

Also where somebody else's value stands.
"""


class Cursor(NamedTuple):
    """Where a page ended: its last job and that job's score in the server's set; empty for the first page."""

    after: str = ""
    score: str = ""


class JobLook(NamedTuple):
    """The record of a job: `fields` by their names, empty if the job is unknown.

    `text` is its result or error. `lease_end` is in ms, 0 if there is no lease.
    """

    fields: dict[str, str]
    body: str
    text: str
    progress: str
    log: list[str]
    lease_end: int
    lines: list[str]


class JobRow(NamedTuple):
    """A job in a list; times in ms, 0 if there is none. `text` is the error of a failed or cancelled job."""

    id: str
    attempts: int
    stalls: int
    created: int
    due: int
    claimed: int
    ended: int
    text: str


class RowPage(NamedTuple):
    """Some rows; `cursor` is where the next page begins, None after the last page."""

    jobs: list[JobRow]
    cursor: Cursor | None


class QueryStore:
    """Queries about the jobs of one shard."""

    def __init__(self, caller: RetryingCaller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys
        self.roster: RosterStore = RosterStore(caller, keys)
        self.server: ServerStore = ServerStore(caller, keys)

    async def job(self, job: str, *, deadline: float | None = None) -> JobLook:
        """Return the record of one job."""
        flat, body, text, progress, log, lease_end, lines = await self._caller.script(
            "job", [job], deadline=deadline
        )
        flat = readable(flat)
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        return JobLook(fields, body, text, progress, readable(log), number(lease_end), readable(lines))

    async def jobs(
        self,
        queue: str,
        state: str,
        *,
        cursor: Cursor,
        limit: int,
        text_bytes: int = 0,
        deadline: float | None = None,
    ) -> RowPage:
        """Return a page of the jobs of a queue in one state; of each error `text_bytes` at most, 0 for all.

        A page may have fewer jobs than `limit` although more pages follow.
        """
        after, score, _, flat, _ = await self._list(
            queue, state, cursor, limit, has_rows=1, text_bytes=text_bytes, deadline=deadline
        )
        rows = [JobRow(*flat[i : i + 8]) for i in range(0, len(flat), 8)]
        return RowPage(rows, Cursor(after, score) if after else None)

    async def search(
        self,
        queue: str,
        state: str,
        correlation_id: str,
        *,
        cursor: Cursor,
        limit: int,
        deadline: float | None = None,
    ) -> tuple[RowPage, int]:
        """Return those on a page of jobs that may have this correlation id, and how many were looked at."""
        text = msgspec.json.encode(correlation_id).decode()
        return await self.sift(
            queue, state, f'"c":{text}', first=correlation_id, cursor=cursor, limit=limit, deadline=deadline
        )

    async def sift(
        self,
        queue: str,
        state: str,
        sought: str,
        *,
        first: str = "",
        cursor: Cursor,
        limit: int,
        deadline: float | None = None,
    ) -> tuple[RowPage, int]:
        """Return those on a page of jobs whose body holds a text, or whose id is `first`, and how many were
        looked at.
        """
        arguments: list[Any] = [queue, state, *cursor, limit, 1, 1, sought, first]
        after, score, _, flat, seen = await self._caller.look_by(
            "list", arguments, missing=_EMPTY, deadline=deadline
        )
        rows = [JobRow(*flat[i : i + 8]) for i in range(0, len(flat), 8)]
        return RowPage(rows, Cursor(after, score) if after else None), seen

    async def keyed(self, queue: str, digest: str, *, deadline: float | None = None) -> list[str]:
        """Return the job for which the idempotency key of this digest stands in a queue, and the one that
        comes after it.
        """
        pointer = self._keys.of("key", f"{queue}:{digest}")
        return [
            job
            for job in await self._caller.look("HMGET", pointer, "job", "next", missing=(), deadline=deadline)
            if job
        ]

    async def has_leaving(self, queue: str, *, deadline: float | None = None) -> bool:
        """Return whether jobs of the queue have ended that go at a time of their own."""
        name = self._keys.of("leaving", queue)
        return await self._caller.look("ZCARD", name, missing=0, deadline=deadline) > 0

    async def count(self, queue: str, state: str, *, deadline: float | None = None) -> int:
        """Count the jobs of a queue in one state, in bounded calls; of `waiting-children` only the roots."""
        if state == "waiting":
            flat = await self._caller.look_by("survey", ["", "", 1, queue], deadline=deadline)
            return QueueLook(*flat).waiting
        if state not in ("active", "waiting-children"):
            name = self._keys.of(state, queue)
            command = "LLEN" if state == "completed" else "ZCARD"
            return await self._caller.look(command, name, missing=0, deadline=deadline)
        count, cursor = 0, Cursor()
        while True:  # no set has these jobs of this queue alone, so the script must look at each job
            *following, found, _, _ = await self._list(
                queue, state, cursor, PAGE_JOBS, has_rows=0, deadline=deadline
            )
            count, cursor = count + found, Cursor(*following)
            if not cursor.after:
                return count

    async def _list(
        self,
        queue: str,
        state: str,
        cursor: Cursor,
        limit: int,
        *,
        has_rows: int,
        text_bytes: int = 0,
        deadline: float | None,
    ) -> list[Any]:
        arguments: list[Any] = [queue, state, cursor.after, cursor.score, limit, has_rows, text_bytes, "", ""]
        return await self._caller.look_by("list", arguments, missing=_EMPTY, deadline=deadline)
