"""Retrying and removing jobs of events: what the calls for one job and for all of a queue have in common.

What must always hold: a job that runs is never touched; a repeated call does nothing twice (`retry.lua`,
`remove.lua`); the work of one call to the server is bounded, however many jobs there are. Crash window:
`caller-dies`: what was sent is done, and the rest is not. The same call again does the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, TypeAlias

from eventbus.errors import DefinitionError, StoreCorrupt, UnknownJob, UsageError
from eventbus.model.names import shown
from eventbus.settings.settings import Settings
from eventbus.store.bounds import HEAVY_ROWS
from eventbus.store.calls.error_text import HEAD_BYTES, error_of, fold, is_of
from eventbus.store.calls.queries import Cursor
from eventbus.store.store import Store
from eventbus.telemetry.failure import describe_cancelled

__all__ = [
    "PURGED",
    "RETRIED",
    "PurgedState",
    "RetriedState",
    "check_event",
    "check_known",
    "count_cheaply",
    "list_batches",
    "remove_jobs",
    "was_done",
]

RetriedState: TypeAlias = Literal["failed", "cancelled"]
PurgedState: TypeAlias = Literal["waiting", "delayed", "parked", "completed", "failed", "cancelled"]

RETRIED = ("failed", "cancelled")
PURGED = ("waiting", "delayed", "parked", "completed", "failed", "cancelled")
_WORDS = {"retried": "retry", "removed": "remove"}
_PAGE = 500


async def count_cheaply(store: Store, queue: str, state: str, *, deadline: float) -> int:
    """Return how many jobs are in a state; -1 where some go at a time of their own, which have no count for
    each state.
    """
    if await store.inspection.has_leaving(queue, deadline=deadline):
        return -1
    return await store.inspection.count(queue, state, deadline=deadline)


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


async def list_batches(
    store: Store, queue: str, state: str, error: str | None, *, age: int = 0, deadline: Callable[[], float]
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
        return _read(word, job_id, "retried")

    async def remove(self, job_id: str, *, call_timeout: Duration | None = None) -> bool:
        """Remove a job that nobody runs. One that waits, is delayed or parked is cancelled first, and who
        awaits it is told.

        Return False, and change nothing, while it runs: cancel it first. A removed job is listed no more and
        cannot be retried. For `job`, `why` and `find` it is unknown at once, and who watches is told. The
        record of one that ended within the last minutes is gone a few minutes after its end: until then its
        emitter finds the outcome. If the answer of the server was lost on the way, the job may be unknown
        already.

        `<id>@<group>` is the job of a group; others of the emission are not touched.
        """
        deadline = self._settings.deadline(call_timeout)
        store = self._life.running("remove a job").store
        (word,) = await self._remove(store, [check_job_id(job_id)], _PURGED, deadline)
        return _read(word, job_id, "removed")

    async def remove_tree(self, root_id: str, *, call_timeout: Duration | None = None) -> bool:
        """Remove a tree of jobs that has ended, such as a flow, by its root: all its members go with it.

        Return False, and change nothing, while it has not ended: cancel it first, so that what it did is
        undone. As with `remove`, it is listed no more and cannot be run again, and its records go within four
        minutes of its end. Its idempotency key stays for its time. Raises UsageError for a member of another
        tree.
        """
        deadline = self._settings.deadline(call_timeout)
        store = self._life.running("remove a tree").store
        (word,) = await self._remove(store, [check_job_id(root_id)], _ENDED_TREE, deadline)
        return _read(word, root_id, "removed")

    async def retry_all(
        self,
        event_or_queue: Event[Any, Any] | str,
        state: RetriedState = "failed",
        error: str | None = None,
        *,
        dry_run: bool = False,
        call_timeout: Duration | None = None,
    ) -> int:
        """Let all jobs of an event in one state wait again; return how many. With `dry_run` only count them.

        `error` takes only those whose error it is: the text of a `FailureGroup`, or the type alone, such as
        `ValueError`. Jobs that fail while this goes on are not retried again. Those that cannot be retried
        stay and are not counted; see `retry`. If this is cut off, call it again: it does the rest.
        `call_timeout` counts for each of its calls to the server, which have 100 jobs at most. `max_waiting`
        does not hold here.
        """
        queue = _check_event(queue_of(event_or_queue), "retried")
        _check_state(state, _RETRIED)
        store = self._life.running("retry jobs").store
        if dry_run and error is None:
            known = await self._count(store, queue, state, call_timeout)
            if known >= 0:
                return known
        count = 0
        async for ids in self._pages(store, queue, state, error, call_timeout):
            for first in range(0, len(ids), HEAVY_ROWS):
                batch = ids[first : first + HEAVY_ROWS]
                words = ["retried"] * len(batch)
                if not dry_run:
                    deadline = self._settings.deadline(call_timeout)
                    words = await store.controls.retrials.retry(batch, states=[state], deadline=deadline)
                count += words.count("retried")
        return count

    async def purge(
        self,
        event_or_queue: Event[Any, Any] | str,
        state: PurgedState = "failed",
        error: str | None = None,
        *,
        older_than: Duration | None = None,
        dry_run: bool = False,
        call_timeout: Duration | None = None,
    ) -> int:
        """Remove all jobs of an event in one state, as `remove` does; return how many. With `dry_run` only
        count them.

        `error` is as in `retry_all`. `older_than` (seconds, a timedelta or text) spares the jobs that ended,
        or for open ones were emitted, more lately. If this is cut off, call it again: it does the rest.
        `call_timeout` counts for each of its calls to the server, which have 100 jobs at most.
        """
        queue = _check_event(queue_of(event_or_queue), "removed")
        _check_state(state, _PURGED)
        if error is not None and state not in _RETRIED:
            raise DefinitionError(f"expected error with state failed or cancelled, got state: {shown(state)}")
        age = 0 if older_than is None else milliseconds(older_than, setting="older_than")
        store = self._life.running("purge jobs").store
        if dry_run and error is None and not age:
            known = await self._count(store, queue, state, call_timeout)
            if known >= 0:
                return known
        count = 0
        async for ids in self._pages(store, queue, state, error, call_timeout, age=age):
            for first in range(0, len(ids), HEAVY_ROWS):
                batch = ids[first : first + HEAVY_ROWS]
                words = ["removed"] * len(batch)
                if not dry_run:
                    deadline = self._settings.deadline(call_timeout)
                    words = await self._remove(store, batch, [state], deadline)
                count += words.count("removed")
        return count

    async def _count(self, store: Store, queue: str, state: str, call_timeout: Duration | None) -> int:
        """Return how many jobs are in a state; -1 where some go at a time of their own, which have no count
        for each state.
        """
        deadline = self._settings.deadline(call_timeout)
        if await store.inspection.has_leaving(queue, deadline=deadline):
            return -1
        return await store.inspection.count(queue, state, deadline=deadline)

    async def _remove(
        self, store: Store, jobs: Sequence[str], states: Sequence[str], deadline: float
    ) -> list[str]:
        return await store.controls.retrials.remove(
            jobs,
            states=states,
            text=describe_cancelled("it was removed"),
            key_ttl_ms=round(self._settings.key_ttl * 1000),
            deadline=deadline,
        )

    async def _pages(
        self,
        store: Store,
        queue: str,
        state: str,
        error: str | None,
        call_timeout: Duration | None,
        *,
        age: int = 0,
    ) -> AsyncIterator[list[str]]:
        """Yield the ids of the jobs that are meant and were there at the beginning, some at a time.

        A page is read before its jobs leave their place. So the cursor stands behind jobs that are gone, and
        the next page goes on from their place.
        """
        place: Cursor | None = Cursor()
        limit = await store.inspection.roster.now(deadline=self._settings.deadline(call_timeout)) - age
        while place is not None:
            deadline = self._settings.deadline(call_timeout)
            page = await store.inspection.jobs(
                queue, state, cursor=place, limit=_PAGE, text_bytes=HEAD_BYTES, deadline=deadline
            )
            if error is not None:
                rows = [row for row in page.jobs if is_of(fold(error_of(row.text)), error)]
            else:
                rows = page.jobs
            yield [row.id for row in rows if (row.ended or row.created) <= limit]
            place = page.cursor


def check_event(queue: str, done: str) -> str:
    """Return the queue, if it is one of an event. Raises UsageError."""
    if queue.startswith("workflow."):
        raise UsageError(
            f"{queue} is a queue of flows, whose jobs are not {done} one by one; "
            f"see eventbus flows {_WORDS[done]}"
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
