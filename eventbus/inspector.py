"""The inspector: the read side of everything in the server, and cancelling. Command line and dashboards use nothing else.

Whatever it tells was so when the server was asked; nothing is kept here. It never changes a job but by `cancel`, and
reads damaged and foreign records without failing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from eventbus.envelope import decode_message
from eventbus.errors import DefinitionError, UnknownJob
from eventbus.event import Event
from eventbus.failure import Failure
from eventbus.lifecycle import Lifecycle
from eventbus.names import check_job_id, queue_name, shown
from eventbus.store.inspection import Cursor, JobLook, JobRow
from eventbus.store.rows import TreeMember

__all__ = ["Inspector", "JobList", "JobReport", "JobState", "JobSummary", "MemberReport", "TreeReport"]

JobState: TypeAlias = Literal[
    "waiting", "active", "delayed", "waiting-children", "parked", "completed", "failed", "cancelled"
]

_PATIENCE = 30.0
_PAGE = 200
_PAGE_BYTES = 4 << 20
_LIMIT = 1000
_QUEUES = ("event.", "workflow.")


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """One job. Times are Unix times in ms, 0 where there is none.

    `payload` is what an event's emitter gave, of other jobs the whole body; text that is no JSON is told as it is.
    `errors` are those of its ended attempts and of its stalls, oldest first, the newest 50. `worker` holds its
    lease until `lease_ms`. `tree` is the root of the tree that it is a member of, `is_root` says that it is one.
    """

    id: str
    state: str
    queue: str
    payload: Any = None
    result: Any = None
    error: str = ""
    errors: list[str] = []
    attempts: int = 0
    stalls: int = 0
    progress: Any = None
    created_ms: int = 0
    due_ms: int = 0
    claimed_ms: int = 0
    ended_ms: int = 0
    worker: str = ""
    lease_ms: int = 0
    tree: str = ""
    is_root: bool = False
    run: int = 1
    stop: str = ""
    why: str = ""
    """Why it is parked."""


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One job in a list; as in a `JobReport`."""

    id: str
    attempts: int = 0
    stalls: int = 0
    created_ms: int = 0
    due_ms: int = 0
    claimed_ms: int = 0
    ended_ms: int = 0
    error: str = ""


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    """Some jobs; `cursor` asks for those that follow, None at the end."""

    jobs: list[JobSummary]
    cursor: str | None


class MemberReport(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a tree; `needed_by` are the jobs that wait, or waited, for it."""

    id: str
    state: str
    queue: str
    attempts: int = 0
    stalls: int = 0
    created_ms: int = 0
    claimed_ms: int = 0
    ended_ms: int = 0
    error: str = ""
    needed_by: list[str] = []


class TreeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tree: its root, and its members as they were added, those of earlier runs too."""

    root: JobReport
    members: list[MemberReport]


class Inspector:
    """Looks at the jobs of a started provider's server.

    Everything raises ProviderStopped while the provider is not started, and StoreError when the server cannot be
    asked within 30 s.
    """

    def __init__(self, life: Lifecycle) -> None:
        self._life = life

    async def job(self, job_id: str) -> JobReport:
        """Return what is recorded of a job; `<id>@<group>` names that of a group. Raises UnknownJob."""
        store = self._life.running("look at a job").store
        look = await store.inspection.job(check_job_id(job_id), deadline=_deadline())
        if not look.fields:
            raise UnknownJob(job_id)
        return _report(job_id, look)

    async def tree(self, root_id: str) -> TreeReport:
        """Return a root with all members of its tree, of a nested tree its root alone. Raises UnknownJob."""
        root = await self.job(root_id)
        trees = self._life.running("look at a tree").store.trees
        members: list[MemberReport] = []
        while True:
            page = await trees.look(
                root_id, first=len(members), limit=_PAGE, max_bytes=_PAGE_BYTES, deadline=_deadline()
            )
            members += map(_member, page.members)
            if not page.members or len(members) >= page.total:
                return TreeReport(root=root, members=members)

    async def jobs(
        self,
        event_or_queue: Event[Any, Any] | str,
        *,
        state: JobState,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobList:
        """Return some jobs of an event, or of a queue, in one state.

        `event_or_queue` is an event, its name, `name@group`, or a queue such as `workflow.checkout.steps`. Waiting jobs
        come in the order of claims, active and delayed ones the first due first, others the newest first. A list
        may have fewer than `limit` (1000 at most) though more follow: `cursor` tells. Of `waiting-children` roots of trees
        are listed; members that have ended are not, `tree` has them.
        """
        queue, place = _queue_of(event_or_queue), _read_cursor(cursor)
        if not 0 < limit <= _LIMIT:
            raise DefinitionError(f"expected limit to be 1 to {_LIMIT}, got: {shown(limit)}")
        store = self._life.running("list jobs").store
        page = await store.inspection.jobs(
            queue, _check_state(state), cursor=place, limit=limit, deadline=_deadline()
        )
        following = None if page.cursor is None else f"{page.cursor.score}:{page.cursor.after}"
        return JobList(jobs=[_summary(each) for each in page.jobs], cursor=following)

    async def counts(
        self, event_or_queue: Event[Any, Any] | str, *, states: Sequence[JobState] = get_args(JobState)
    ) -> dict[str, int]:
        """Return how many jobs an event, or a queue, has in each state; as `jobs` lists them."""
        queue = _queue_of(event_or_queue)
        store = self._life.running("count jobs").store
        return {
            each: await store.inspection.count(queue, _check_state(each), deadline=_deadline())
            for each in states
        }

    async def cancel(self, job_id: str, reason: str = "") -> bool:
        """Cancel a job, or a root with its tree, and the jobs of its groups; as `EventProvider.cancel`."""
        return await self._life.running("cancel a job").cancel(check_job_id(job_id), reason)


def _queue_of(given: Event[Any, Any] | str) -> str:
    name = given.name if isinstance(given, Event) else given
    if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"expected an event, its name or a queue, got: {shown(given)}")
    if not isinstance(given, Event) and name.startswith(_QUEUES):
        return name
    event, _, group = name.partition("@")
    return queue_name(event, group) if group else queue_name(event)


def _check_state(state: str) -> str:
    if state not in get_args(JobState):
        known = ", ".join(get_args(JobState))
        raise DefinitionError(f"expected a state of jobs, one of {known}, got: {shown(state)}")
    return state


def _read_cursor(cursor: str | None) -> Cursor:
    if cursor is None:
        return Cursor()
    score, colon, after = cursor.partition(":")
    try:
        float(score)
    except ValueError:
        colon = ""
    if not colon or not after:
        raise DefinitionError(f"expected the cursor of an earlier list of jobs, got: {shown(cursor)}")
    return Cursor(after, score)


def _report(job_id: str, look: JobLook) -> JobReport:
    fields = look.fields
    state, queue = fields.get("state", "unknown"), fields.get("queue", "")
    is_completed = state == "completed"
    return JobReport(
        id=job_id,
        state=state,
        queue=queue,
        payload=_payload(look.body, queue),
        result=_value(look.text) if is_completed else None,
        error=_error(look.text) if state in ("failed", "cancelled") else "",
        errors=[_error(each) for each in look.log],
        attempts=_number(fields, "attempts"),
        stalls=_number(fields, "stalls"),
        progress=_value(look.progress),
        created_ms=_number(fields, "created"),
        due_ms=_number(fields, "due"),
        claimed_ms=_number(fields, "claimed"),
        ended_ms=_number(fields, "ended"),
        worker=_worker_of(fields.get("token", "")) if state == "active" else "",
        lease_ms=look.lease_end if state == "active" else 0,
        tree=fields.get("root", ""),
        is_root="tree" in fields,
        run=_number(fields, "run") or 1,
        stop=fields.get("stop", ""),
        why=fields.get("why", "") if state == "parked" else "",
    )


def _worker_of(token: str) -> str:
    """The worker in a lease's token, `<worker>[+]:<call>`."""
    return token.partition(":")[0].partition("+")[0]


def _member(member: TreeMember) -> MemberReport:
    return MemberReport(
        id=member.id,
        state=member.state,
        queue=member.queue,
        attempts=member.attempts,
        stalls=member.stalls,
        created_ms=member.created,
        claimed_ms=member.claimed,
        ended_ms=member.ended,
        error=_error(member.text) if member.state in ("failed", "cancelled") else "",
        needed_by=member.needs.split(),
    )


def _summary(row: JobRow) -> JobSummary:
    return JobSummary(
        id=row.id,
        attempts=row.attempts,
        stalls=row.stalls,
        created_ms=row.created,
        due_ms=row.due,
        claimed_ms=row.claimed,
        ended_ms=row.ended,
        error=_error(row.text),
    )


def _payload(body: str, queue: str) -> Any:
    if queue.startswith("event."):
        try:
            return msgspec.json.decode(decode_message(body).payload)
        except (msgspec.MsgspecError, UnicodeError):
            return _plain(body)
    return _value(body)


def _value(text: str) -> Any:
    """The value of JSON text; text that is none stands for itself."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return _plain(text)


def _plain(text: str) -> str:
    """The text without what no UTF-8 can hold, so that it can be shown and passed on."""
    return text.encode(errors="replace").decode()


def _error(text: str) -> str:
    """An error's record as one line of text."""
    if not text:
        return ""
    try:
        failure = msgspec.json.decode(text, type=Failure)
    except (msgspec.MsgspecError, UnicodeError):
        return _plain(text)
    return f"{failure.type}: {failure.message}" if failure.message else failure.type


def _number(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isdecimal() else 0


def _deadline() -> float:
    return time.monotonic() + _PATIENCE
