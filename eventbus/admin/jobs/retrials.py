"""Retrying and removing jobs of events: what the calls for one job and for all of a queue have in common.

What must always hold: a job that runs is never touched; a repeated call does nothing twice (`retry.lua`,
`remove.lua`); the work of one call to the server is bounded, however many jobs there are. Crash window:
`caller-dies`: what was sent is done, and the rest is not. The same call again does the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

from eventbus.errors import DefinitionError, StoreCorrupt, UnknownJob, UsageError
from eventbus.model.names import shown
from eventbus.settings.settings import Settings
from eventbus.store.bounds import HEAVY_ROWS
from eventbus.store.calls.error_text import HEAD_BYTES, error_of, fold, is_of
from eventbus.store.calls.queries import Cursor
from eventbus.store.store import Store
from eventbus.telemetry.failure import describe_cancelled

RetriedState: TypeAlias = Literal["failed", "cancelled"]
PurgedState: TypeAlias = Literal["waiting", "delayed", "parked", "completed", "failed", "cancelled"]

RETRIED = ("failed", "cancelled")
PURGED = ("waiting", "delayed", "parked", "completed", "failed", "cancelled")
_WORDS = {"retried": "retry", "removed": "remove"}
_PAGE = 500


async def _count_cheaply(store: Store, queue: str, state: str, *, deadline: float) -> int:
    """Return how many jobs are in a state; -1 where some go at a time of their own, which have no count for
    each state.
    """
    if await store.inspection.has_leaving(queue, deadline=deadline):
        return -1
    return await store.inspection.count(queue, state, deadline=deadline)


async def change_all(
    store: Store,
    queue: str,
    state: str,
    error: str | None,
    *,
    age: int = 0,
    change: Callable[[Sequence[str]], Awaitable[int]] | None,
    deadline: Callable[[], float],
) -> int:
    """Change the jobs that are meant, a batch at a time; return how many were changed. `change` says that of
    a batch; without one they are counted. `deadline` gives that of each call.
    """
    if change is None and error is None and not age:
        known = await _count_cheaply(store, queue, state, deadline=deadline())
        if known >= 0:
            return known
    count = 0
    async for ids in _list_batches(store, queue, state, error, age=age, deadline=deadline):
        count += len(ids) if change is None else await change(ids)
    return count


async def remove_jobs(
    store: Store, settings: Settings, jobs: Sequence[str], states: Sequence[str], *, deadline: float
) -> list[str]:
    """Remove jobs that are in one of these states; return one word for each."""
    return await store.controls.retrials.remove(
        jobs,
        states=states,
        text=describe_cancelled("it was removed"),
        key_ttl_ms=round(settings.key_ttl * 1000),
        deadline=deadline,
    )


async def _list_batches(
    store: Store, queue: str, state: str, error: str | None, *, age: int, deadline: Callable[[], float]
) -> AsyncIterator[list[str]]:
    """Yield the ids of the jobs that are meant and were there at the beginning, as many as one call may have.

    A page is read before its jobs leave their place. So the cursor stands behind jobs that are gone, and the
    next page goes on from their place. `deadline` gives that of each call.
    """
    place: Cursor | None = Cursor()
    limit = await store.inspection.roster.now(deadline=deadline()) - age
    while place is not None:
        page = await store.inspection.jobs(
            queue, state, cursor=place, limit=_PAGE, text_bytes=HEAD_BYTES, deadline=deadline()
        )
        rows = page.jobs
        if error is not None:
            rows = [row for row in rows if is_of(fold(error_of(row.text)), error)]
        ids = [row.id for row in rows if (row.ended or row.created) <= limit]
        for first in range(0, len(ids), HEAVY_ROWS):
            yield ids[first : first + HEAVY_ROWS]
        place = page.cursor


def check_event(queue: str, done: str) -> str:
    """Return the queue, if it is one of an event. Raises UsageError."""
    if queue.startswith("workflow."):
        raise UsageError(
            f"{queue} is a queue of flows, whose jobs are not {done} one by one; see eventbus "
            f"flows {_WORDS[done]}"
        )
    return queue


def check_known(state: str, known: Sequence[str]) -> None:
    """Raise DefinitionError unless it is one of the states that are known."""
    if state not in known:
        raise DefinitionError(f"expected a state, one of {', '.join(known)}, got: {shown(state)}")


def was_done(word: str, job_id: str, done: str) -> bool:
    """Return whether the job was changed. Raises UnknownJob, UsageError, StoreCorrupt."""
    if word == "unknown":
        raise UnknownJob(job_id)
    if word in ("member", "root"):
        what = "a flow" if word == "root" else "a step of a flow, or another member of a tree"
        raise UsageError(
            f"job {job_id!r} is {what}, which is not {done} by itself; see eventbus flows {_WORDS[done]}"
        )
    if word == "key":
        raise UsageError(
            f"the key of job {job_id!r} stands for a later job by now; retry that one, or emit again"
        )
    if word == "ungrouped":
        raise UsageError(f"the group of job {job_id!r} was removed, so nobody would run it")
    if word == "damaged":
        raise StoreCorrupt(f"the record of job {job_id!r} is damaged, so it cannot run again; emit anew")
    return word == done
