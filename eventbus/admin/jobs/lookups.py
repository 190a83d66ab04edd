"""Finding jobs of events and flows: by idempotency key, by correlation id.

A key is a pointer, which is read. A correlation id stands in the message of a job and nowhere else, because
an index would cost each emission; so jobs are searched for it, the newest of each state first. What must
hold: a search is bounded, and says whether it has seen all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.admin.jobs.attempts import error_line
from eventbus.admin.jobs.chain import FLOW_QUEUES, chain_of
from eventbus.admin.queue_name import queue_of
from eventbus.model.event import Event
from eventbus.model.names import EVENT_QUEUES, split_group
from eventbus.store.bounds import PAGE_JOBS
from eventbus.store.calls.queries import Cursor, JobLook
from eventbus.store.readable import number_in
from eventbus.store.store import Store

_STATES = ("active", "waiting", "delayed", "parked", "waiting-children", "failed", "completed", "cancelled")
_OF_FLOWS = "waiting-children"
"""The state that only jobs of flows have."""
_STEPS = (".steps", ".steps/")
"""Ends, or is in, the names of queues of steps."""
_MOST_SEEN = 20_000
"""So many jobs one search looks at."""
_MOST_FOUND = 100


class FoundJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job that was found. Times are Unix times in ms, 0 where there is none."""

    id: str
    queue: str
    state: str
    attempts: int = 0
    created_ms: int = 0
    ended_ms: int = 0
    error: str = ""


class FoundJobs(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found, 100 jobs at most. `seen` is how many jobs it looked at; `is_whole` is False if
    there are more.
    """

    jobs: list[FoundJob]
    seen: int
    is_whole: bool


async def list_searched(store: Store, given: Event[Any, Any] | str | None, deadline: float) -> list[str]:
    """Return the queue that is meant, with those of its groups; or those of all events and flows."""
    known = await store.inspection.roster.queues(deadline=deadline)
    if given is None:
        rooted = await store.trees.root_queues(
            deadline=deadline
        )  # flows that no worker serves are known only there
        flows = sorted({name for name in (*known, *rooted) if _is_of_flows(name)})
        return [*(name for name in known if name.startswith(EVENT_QUEUES)), *flows]
    queue = queue_of(given)
    return [queue, *(name for name in known if name != queue and split_group(name)[0] == queue)]


def _is_of_flows(queue: str) -> bool:
    """Return whether flows are in a queue, and not the jobs of their steps."""
    return queue.startswith(FLOW_QUEUES) and not queue.endswith(_STEPS[0]) and _STEPS[1] not in queue


async def find_by_key(store: Store, queues: list[str], digest: str, deadline: float) -> FoundJobs:
    """Find the jobs for which a key stands, and the one that comes after it, if any."""
    found: list[FoundJob] = []
    seen = 0
    for queue in queues:
        for job in await store.inspection.keyed(queue, digest, deadline=deadline):
            look = await store.inspection.job(job, deadline=deadline)
            seen += 1
            if _is_there(look):  # else the key outlives its job
                found.append(found_job(job, look))
    return FoundJobs(jobs=found, seen=seen, is_whole=True)


class ChainSearch:
    """One search for a correlation id."""

    def __init__(self, store: Store, correlation_id: str, deadline: float) -> None:
        self._store = store
        self._id = correlation_id
        self._deadline = deadline
        self._found: list[FoundJob] = []
        self._seen = 0

    async def run(self, queues: list[str]) -> FoundJobs:
        """Look at the jobs of these queues, one state after the other, as far as the bounds go."""
        inspection = self._store.inspection
        looks = await self._store.presence.survey(queues, deadline=self._deadline)
        ended = await inspection.roster.ended(queues, deadline=self._deadline)
        is_whole = True
        for state in _STATES:
            for queue, look, counts in zip(queues, looks, ended, strict=True):
                count = getattr(look, state, None)
                if count is None:
                    count = getattr(counts, state, 1)
                if state == _OF_FLOWS and not queue.startswith(FLOW_QUEUES):
                    continue
                # Those that go at a time of their own are counted nowhere, so what ended is always looked at.
                if count or state not in ("waiting", "delayed", "parked"):
                    is_whole = await self._search(queue, state) and is_whole
        return FoundJobs(jobs=self._found, seen=self._seen, is_whole=is_whole)

    async def _search(self, queue: str, state: str) -> bool:
        """Search the jobs of one state; return whether all were seen."""
        place: Cursor | None = Cursor()
        while place is not None:
            if self._seen >= _MOST_SEEN or len(self._found) >= _MOST_FOUND:
                return False
            page, seen = await self._store.inspection.search(
                queue, state, self._id, cursor=place, limit=PAGE_JOBS, deadline=self._deadline
            )
            self._seen += seen
            for row in page.jobs[: _MOST_FOUND - len(self._found)]:
                look = await self._store.inspection.job(row.id, deadline=self._deadline)
                if _is_there(look) and self._is_meant(row.id, look):
                    self._found.append(found_job(row.id, look))
            place = page.cursor
        return True

    def _is_meant(self, job: str, look: JobLook) -> bool:
        """Return whether it is its correlation id, and not a part of its payload, that the text was
        found in.
        """
        if split_group(job)[0] == self._id:  # the first of its chain names no other
            return True
        return chain_of(job, look.fields.get("queue", ""), look.body).correlation_id == self._id


def _is_there(look: JobLook) -> bool:
    """Return whether there is such a job, which nobody has removed."""
    return bool(look.fields) and "removed" not in look.fields


def found_job(job: str, look: JobLook) -> FoundJob:
    """Return what a search tells of a job."""
    fields = look.fields
    state = fields.get("state", "unknown")
    return FoundJob(
        id=job,
        queue=fields.get("queue", ""),
        state=state,
        attempts=number_in(fields, "attempts"),
        created_ms=number_in(fields, "created"),
        ended_ms=number_in(fields, "ended"),
        error=error_line(look.text) if state in ("failed", "cancelled") else "",
    )
