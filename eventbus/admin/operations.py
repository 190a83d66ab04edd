"""Bulk operations: one action for many jobs, which goes on when whoever asked for it is gone.

Whoever begins one need not stay: workers do it, and any process that calls `Operations.run`. What must always
hold: an operation that was begun is done to its end, fails with a problem that is told, or is stopped; it is
about no job that came to its state later; the same id begins one operation.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from eventbus.admin.namespace import Namespace, OldName
from eventbus.admin.queue_name import queue_of
from eventbus.engine.job_actions import ACTIONS
from eventbus.engine.job_pages import count_jobs
from eventbus.engine.operation_runner import OperationRunner
from eventbus.errors import CountChanged, DefinitionError, UsageError
from eventbus.model import chance
from eventbus.model.durations import Duration, milliseconds
from eventbus.model.event import Event
from eventbus.model.names import check_job_id, shown
from eventbus.store.bounds import HEAVY_ROWS, REASON_CHARACTERS
from eventbus.store.calls.operation_store import OperationRecord
from eventbus.store.store import Store

OperationAction: TypeAlias = Literal["retry", "remove", "cancel", "promote"]
OperationState: TypeAlias = Literal["running", "completed", "failed", "stopped"]

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_NAMED = 1000
_NEAR = 0.1
"""So much another count may be than the expected one."""
_LISTED = 200


class OperationPreview(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs an operation would be about, with the ids of the first 20. There may be more if it is not
    `is_exact`: 10,000 jobs of the queue and state are looked at.
    """

    count: int
    is_exact: bool
    samples: list[str]


class OperationReport(msgspec.Struct, frozen=True, kw_only=True):
    """One operation. Times are Unix times in ms of the server's clock, 0 where there is none.

    `action` is done to the jobs of `queue` in the state `job_state`, `''` if they were named. `total` is how
    many there were at its beginning; None if they were too many to be counted then and it has not completed.
    `done` is to how many it was done, `failed` how many did not allow it any more: they had another state by
    then. `problem` says why a failed one could not go on.
    """

    id: str
    action: str
    queue: str
    state: OperationState
    job_state: str = ""
    error: str = ""
    total: int | None = None
    done: int = 0
    failed: int = 0
    by: str = ""
    reason: str = ""
    stopped_by: str = ""
    problem: str = ""
    began_ms: int = 0
    ended_ms: int = 0


class Operations(Namespace):
    """Bulk operations on jobs of events: `preview` or `begin` one, `get` or `list` how far they are."""

    async def preview(
        self,
        action: OperationAction,
        event_or_queue: Event[Any, Any] | str,
        state: str | None = None,
        *,
        error: str | None = None,
        older_than: Duration | None = None,
        jobs: Sequence[str] | None = None,
    ) -> OperationPreview:
        """Count the jobs that `begin` would be about now. Changes nothing. Raises as it does."""
        store, deadline = self._begin("preview an operation")
        record = await self._describe(store, action, event_or_queue, state, error, older_than, jobs, deadline)
        found = await count_jobs(store, record, deadline=deadline)
        return OperationPreview(count=found.total, is_exact=found.is_exact, samples=found.samples)

    async def begin(
        self,
        action: OperationAction,
        event_or_queue: Event[Any, Any] | str,
        state: str | None = None,
        *,
        error: str | None = None,
        older_than: Duration | None = None,
        jobs: Sequence[str] | None = None,
        by: str = "",
        reason: str = "",
        operation_id: str | None = None,
        expected: int | None = None,
    ) -> OperationReport:
        """Begin to retry, remove, cancel or promote many jobs of an event, and return at once.

        It is about the jobs that are in `state` now; for retry and promote that is `failed` and `delayed`
        unless it is said. `error` and `older_than` are as in `queues.purge`. `jobs` are ids of jobs of the
        queue, 1,000 at most, in place of a state. To cancel a job cancels those of its groups. `by` and
        `reason` stand beside it. The same `operation_id` (letters, digits, `-` and `_`, 64 at most) begins
        one operation, however often it is sent. `expected` is how many jobs a preview has told.

        Workers of this server do it, whichever queues they serve, and begin within 5 s; see also
        `run`. Raises DefinitionError, UsageError for a queue of flows and for jobs of another
        queue, and CountChanged if it would be about more or fewer jobs than `expected`, give or take a tenth.
        """
        store, deadline = self._begin("begin an operation")
        record = await self._describe(store, action, event_or_queue, state, error, older_than, jobs, deadline)
        kept = store.controls.operations
        if operation_id is not None:
            known = await kept.read(_check_id(operation_id), deadline=deadline)
            if known is not None:
                return _report(_check_same(known, record))
        found = await count_jobs(store, record, deadline=deadline)
        if expected is not None and abs(found.total - expected) > expected * _NEAR:
            raise CountChanged(found.total, expected)
        record = msgspec.structs.replace(
            record,
            id=operation_id or chance.token(8),
            total=found.total if found.is_exact else -1,
            by=_check_text("by", by),
            reason=_check_text("reason", reason),
        )
        if not await kept.begin(record, deadline=deadline):  # somebody else sent it meanwhile
            known = await kept.read(record.id, deadline=deadline)
            return _report(_check_same(known or record, record))
        return await self.get(record.id)

    async def get(self, operation_id: str) -> OperationReport:
        """Return how far an operation is. Raises UsageError if there is none of that id, or no more: they are
        kept for 7 days.
        """
        store, deadline = self._begin("look at an operation")
        record = await store.controls.operations.read(_check_id(operation_id), deadline=deadline)
        if record is None:
            raise UsageError(f"there is no operation {operation_id!r}; ended ones are kept for 7 days")
        return _report(record)

    async def stop(self, operation_id: str, by: str = "") -> bool:
        """Let an operation do no more than the 100 jobs that are under way. Return False if it has ended.

        What is done stays done. Raises UsageError if there is no operation of that id.
        """
        store, deadline = self._begin("stop an operation")
        word = await store.controls.operations.stop(
            _check_id(operation_id), _check_text("by", by), deadline=deadline
        )
        if word == "unknown":
            raise UsageError(f"there is no operation {operation_id!r}; ended ones are kept for 7 days")
        return word == "stopped"

    async def run(self) -> None:
        """Do the operations that nobody works at, in this process, and return when there is none.

        Workers do this all the time; it is for a server without workers. It may be cancelled at any time:
        another process goes on.
        """
        store = self._store("run operations")
        await OperationRunner(store, key_ttl_ms=round(self._settings.key_ttl * 1000)).run_all()

    async def list(self, *, limit: int = 50) -> list[OperationReport]:
        """Return the newest operations, 200 at most."""
        if not 0 < limit <= _LISTED:
            raise DefinitionError(f"expected limit to be 1 to {_LISTED}, got: {shown(limit)}")
        store, deadline = self._begin("list operations")
        found = await store.controls.operations.list(limit, deadline=deadline)
        return [_report(record) for record in found]

    __call__: Final = OldName(list)  # noqa: A003  (the method)

    async def _describe(
        self,
        store: Store,
        action: str,
        event_or_queue: Event[Any, Any] | str,
        state: str | None,
        error: str | None,
        older_than: Duration | None,
        jobs: Sequence[str] | None,
        deadline: float,
    ) -> OperationRecord:
        """Return the record of an operation that is asked for, without an id."""
        queue = queue_of(event_or_queue)
        if queue.startswith("workflow."):
            raise UsageError(f"{queue} is a queue of flows; a bulk operation is for jobs of events")
        if action not in ACTIONS:
            raise DefinitionError(f"expected an action, one of {', '.join(ACTIONS)}, got: {shown(action)}")
        age = 0 if older_than is None else milliseconds(older_than, setting="older_than")
        if jobs is not None:
            if state is not None or error is not None or age:
                raise DefinitionError("expected jobs alone, or a state with an error and older_than")
            named = await _check_jobs(store, queue, jobs, deadline)
            return OperationRecord(id="", action=action, queue=queue, jobs=named)
        of = _check_state(action, state)
        if error is not None and of not in ACTIONS["retry"]:
            raise DefinitionError(f"expected error with state failed or cancelled, got state: {shown(of)}")
        before = await store.inspection.roster.now(deadline=deadline) - age
        return OperationRecord(id="", action=action, queue=queue, of=of, error=error or "", before=before)


def _check_same(known: OperationRecord, asked: OperationRecord) -> OperationRecord:
    """Return the operation that an id stands for. Raises UsageError if another one is asked for."""
    if _meant_by(known) != _meant_by(asked):
        raise UsageError(f"operation {known.id!r} is another one; give an id of its own")
    return known


def _meant_by(record: OperationRecord) -> tuple[str, ...]:
    """Return what an operation is about, without the moment at which it began."""
    return (record.action, record.queue, record.of, record.error, record.jobs)


def _check_state(action: str, state: str | None) -> str:
    known = ACTIONS[action]
    if state is None and action in ("retry", "promote"):
        return known[0]
    if state not in known:
        raise DefinitionError(
            f"expected a state for {action}, one of {', '.join(known)}, got: {shown(state)}"
        )
    return state


async def _check_jobs(store: Store, queue: str, jobs: Sequence[str], deadline: float) -> str:
    """Return the ids as JSON. Raises UsageError if one is a job of another queue; one that is unknown by now
    is let through.
    """
    ids = list(dict.fromkeys(check_job_id(job) for job in jobs))
    if not 0 < len(ids) <= _MOST_NAMED:
        raise DefinitionError(f"expected 1 to {_MOST_NAMED} jobs, got: {len(ids)}")
    for first in range(0, len(ids), HEAVY_ROWS):
        batch = ids[first : first + HEAVY_ROWS]
        looks = await asyncio.gather(*(store.inspection.job(job, deadline=deadline) for job in batch))
        for job, look in zip(batch, looks, strict=True):
            if look.fields and look.fields.get("queue") != queue:
                raise UsageError(f"job {job!r} is none of {queue}")
    return msgspec.json.encode(ids).decode()


def _check_id(operation_id: object) -> str:
    if not isinstance(operation_id, str) or not _ID.fullmatch(operation_id):
        raise DefinitionError(
            f"expected an operation's id, 1 to 64 letters, digits, - and _, got: {shown(operation_id)}"
        )
    return operation_id


def _check_text(name: str, text: str) -> str:
    if len(text) > REASON_CHARACTERS:
        raise DefinitionError(
            f"expected {name} to have at most {REASON_CHARACTERS} characters, got: {len(text)}"
        )
    return text


def _report(record: OperationRecord) -> OperationReport:
    return OperationReport(
        id=record.id,
        action=record.action,
        queue=record.queue,
        state=record.state,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        job_state=record.of,
        error=record.error,
        total=_total(record),
        done=record.done,
        failed=record.failed,
        by=record.by,
        reason=record.reason,
        stopped_by=record.stopped_by,
        problem=record.problem,
        began_ms=record.begun,
        ended_ms=record.ended,
    )


def _total(record: OperationRecord) -> int | None:
    """Return how many jobs there were; what could not be counted at the beginning is known at the end."""
    if record.total < 0:
        return record.done + record.failed if record.state == "completed" else None
    return record.total
