"""The inspector: reads the jobs in the server, and cancels them.

The command line and dashboards use nothing else. Its reports are true for the moment at which the server
answered; nothing is cached. It changes jobs only by `cancel` and by what `edits` has, and it reads damaged
and foreign records without an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec
from anyio import to_thread

from eventbus.admin.audit import Audit
from eventbus.admin.controls import Controls, QueueControls
from eventbus.admin.events import Definitions
from eventbus.admin.groups import GroupReport, list_groups
from eventbus.admin.history import Histories
from eventbus.admin.jobs.attempts import FailureReport, Run, error_line, read_failures
from eventbus.admin.jobs.edits import JobEdits
from eventbus.admin.jobs.failures import Failures
from eventbus.admin.jobs.field_search import FieldSearches
from eventbus.admin.jobs.job_cursor import (
    check_ended,
    check_state,
    check_states,
    cut_older,
    read_place,
    write_place,
)
from eventbus.admin.jobs.job_report import (
    AttemptReport,
    JobReport,
    LogLine,
    TimelineEntry,
    report_of,
    worker_of,
)
from eventbus.admin.jobs.lookups import Lookups
from eventbus.admin.jobs.reasons import StateReason, Surroundings, explain, explain_orphan
from eventbus.admin.jobs.retrials import Retrials
from eventbus.admin.jobs.surroundings import look_around, look_before
from eventbus.admin.operations import Operations
from eventbus.admin.queue_name import queue_of
from eventbus.admin.queues import Overview
from eventbus.admin.server import ServerLooks
from eventbus.emit.route import Routes
from eventbus.errors import DefinitionError, UnknownJob
from eventbus.lifecycle import Lifecycle
from eventbus.model.durations import Duration, milliseconds
from eventbus.model.event import Event
from eventbus.model.names import EVENT_QUEUES, check_job_id, shown, split_group
from eventbus.model.redaction.hidden_values import HiddenValues
from eventbus.model.redaction.redacting import Names
from eventbus.model.states import JobState
from eventbus.settings.settings import Settings
from eventbus.store.calls.queries import Cursor, JobLook, JobRow
from eventbus.store.calls.tree_store import PAGE, PAGE_BYTES
from eventbus.store.scripting.script_rows import TreeMember

__all__ = [
    "AttemptReport",
    "FailureReport",
    "GroupReport",
    "Inspector",
    "JobList",
    "JobReport",
    "JobState",
    "JobSummary",
    "LogLine",
    "MemberReport",
    "TimelineEntry",
    "TreeReport",
]

_LIMIT = 1000
_IN_LOOP = 64 * 1024
"""A job with more bytes than this is searched for hidden values in a thread, so that the event loop goes on.
"""
_PAGES = 20
"""How many pages are looked at for one that has a job, because whoever looks takes an empty one for the end.
"""


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One job in a list, with some fields of a `JobReport`. `state` is the one in which it is listed."""

    id: str
    state: str = ""
    attempts: int = 0
    stalls: int = 0
    created_ms: int = 0
    due_ms: int = 0
    claimed_ms: int = 0
    ended_ms: int = 0
    error: str = ""


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs. `cursor` asks for the next page; None on the last page."""

    jobs: list[JobSummary]
    cursor: str | None


class MemberReport(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a tree. `needed_by` are the ids of the jobs that wait or waited for it."""

    id: str
    state: str
    queue: str
    attempts: int = 0
    stalls: int = 0
    created_ms: int = 0
    claimed_ms: int = 0
    ended_ms: int = 0
    error: str = ""
    failures: list[FailureReport] = []
    needed_by: list[str] = []


class TreeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tree: its root, and its members as they were added, including those of earlier runs."""

    root: JobReport
    members: list[MemberReport]


class Inspector(
    JobEdits,
    Overview,
    Retrials,
    Failures,
    Lookups,
    Histories,
    Operations,
    Audit,
    ServerLooks,
    Definitions,
    FieldSearches,
):
    """Reads the jobs in the server of a started provider, and changes those that wait.

    Each method raises ProviderStopped while the provider is not started, and StoreError when the server does
    not answer within `call_timeout`. That counts for the whole call and is `reply_timeout` by default.
    """

    def __init__(self, life: Lifecycle, settings: Settings, routes: Routes) -> None:
        super().__init__(life, settings, routes)

    async def job(
        self,
        job_id: str,
        *,
        reveal: bool = False,
        names: Callable[[str], bool] | None = None,
        call_timeout: Duration | None = None,
    ) -> JobReport:
        """Return the report of a job; `<id>@<group>` is the id of a group's job.

        What is marked as Sensitive is hidden, and what its errors quote of values with secret names, unless
        `reveal`. With `names`, a function that says of the name of a field whether its value is hidden, these
        values are hidden everywhere, too. Raises UnknownJob, also for text that is not a job id.
        """
        return await self._job(job_id, self._settings.deadline(call_timeout), reveal=reveal, names=names)

    async def _job(
        self, job_id: str, deadline: float, *, reveal: bool = False, names: Names | None = None
    ) -> JobReport:
        look = await self._look(job_id, deadline)
        name = split_group(look.fields.get("queue", ""))[0].removeprefix(EVENT_QUEUES)
        hidden = HiddenValues(look.body, self._routes.known(name), job_id=job_id, names=names, reveals=reveal)
        if len(look.body) + len(look.text) <= _IN_LOOP:
            return report_of(job_id, look, hidden)
        return await to_thread.run_sync(report_of, job_id, look, hidden)  # so that the loop goes on

    async def _look(self, job_id: str, deadline: float) -> JobLook:
        store = self._life.running("look at a job").store
        look = await store.inspection.job(check_job_id(job_id), deadline=deadline)
        if not look.fields or "removed" in look.fields:  # a removed one stays for its emitter alone
            raise UnknownJob(job_id)
        return look

    async def why(self, job_id: str, *, call_timeout: Duration | None = None) -> StateReason:
        """Return why a job is in its state: what keeps it from running, who runs it, or that it has ended.

        Raises UnknownJob, also for text that is not a job id.
        """
        deadline = self._settings.deadline(call_timeout)
        look = await self._look(job_id, deadline)
        fields, worker = look.fields, worker_of(look.fields.get("token", ""))
        store = self._life.running("look at a job").store
        if fields.get("state") == "active" and look.lease_end:
            now = await store.inspection.roster.now(deadline=deadline)
            if look.lease_end < now:
                return explain_orphan(fields, worker, look.lease_end)
        around = Surroundings()
        if fields.get("state") == "waiting":
            (queue,) = await Controls(self._life, self._settings).look([fields["queue"]], deadline)
            around = await look_around(store, queue, fields.get("limit", ""), deadline)
        elif fields.get("state") == "delayed" and "after" in fields:
            around = await look_before(store, fields["after"], deadline)
        return explain(fields, worker, around)

    async def tree(self, root_id: str, *, call_timeout: Duration | None = None) -> TreeReport:
        """Return a root with all members of its tree; of a nested tree its root alone. Raises UnknownJob."""
        deadline = self._settings.deadline(call_timeout)
        root = await self._job(root_id, deadline)
        trees = self._life.running("look at a tree").store.trees
        members: list[MemberReport] = []
        while True:
            page = await trees.look(
                root_id, first=len(members), limit=PAGE, max_bytes=PAGE_BYTES, deadline=deadline
            )
            logs = await asyncio.gather(*(self._log_of(member, deadline) for member in page.members))
            members += map(_member, page.members, logs)
            if not page.members or len(members) >= page.total:
                return TreeReport(root=root, members=members)

    async def _log_of(self, member: TreeMember, deadline: float) -> list[str]:
        """Return the log of a member. Most are not read, because they are empty or repeat the outcome."""
        has_one_failure = member.state == "failed" and member.attempts == 1 and not member.stalls
        if has_one_failure or not (member.attempts or member.stalls):
            return []
        store = self._life.running("look at a tree").store
        return (await store.inspection.job(member.id, deadline=deadline)).log

    async def jobs(
        self,
        event_or_queue: Event[Any, Any] | str,
        *,
        state: JobState | Sequence[JobState] = "waiting",
        limit: int = 50,
        cursor: str | None = None,
        since: Duration | None = None,
        call_timeout: Duration | None = None,
    ) -> JobList:
        """Return a page of the jobs of an event, or of a queue, in one state, or in several.

        Those of several states come one state after the other, in the order given: `state=["failed",
        "cancelled"]`.

        `event_or_queue` is an event, its name, `name@group`, or a queue such as `workflow.checkout.steps`.
        Waiting jobs come in the order in which workers claim them, active jobs by their worker and then the
        longest running first, delayed jobs by their due time, other jobs newest first. A page may have fewer
        than `limit` jobs (at most 1000) although more follow; only a `cursor` of None means the end. With
        `since` (seconds, a timedelta or text), of jobs that ended only those that did so lately, without
        looking at older ones. In the state `waiting-children` only roots of trees are listed. Members that
        have ended are not listed; `tree` has them.
        """
        queue, states = queue_of(event_or_queue), check_states(state)
        current, place = read_place(cursor, states)
        if not 0 < limit <= _LIMIT:
            raise DefinitionError(f"expected limit to be 1 to {_LIMIT}, got: {shown(limit)}")
        inspection = self._life.running("list jobs").store.inspection
        deadline = self._settings.deadline(call_timeout)
        found: list[JobSummary] = []
        oldest = 0 if since is None else await self._ended_since(states, since, deadline)
        for _ in range(_PAGES):
            left = limit - len(found)
            page = await inspection.jobs(queue, current, cursor=place, limit=left, deadline=deadline)
            rows, following = cut_older(page, oldest)
            found += [_summary(row, current) for row in rows]
            if following is None:
                if current == states[-1]:
                    return JobList(jobs=found, cursor=None)
                current, following = states[states.index(current) + 1], Cursor()
            elif found:
                place = following
                break
            place = following
            if len(found) >= limit:
                break
        return JobList(jobs=found, cursor=write_place(current, place, states))

    async def _ended_since(self, states: Sequence[str], since: Duration, deadline: float) -> int:
        for state in states:
            check_ended(state)
        roster = self._life.running("list jobs").store.inspection.roster
        return await roster.now(deadline=deadline) - milliseconds(since, setting="since")

    async def counts(
        self,
        event_or_queue: Event[Any, Any] | str,
        *,
        states: Sequence[JobState] = get_args(JobState),
        call_timeout: Duration | None = None,
    ) -> dict[str, int]:
        """Return how many jobs an event, or a queue, has in each state. Counts the jobs that `jobs` lists."""
        queue, deadline = queue_of(event_or_queue), self._settings.deadline(call_timeout)
        store = self._life.running("count jobs").store
        return {
            state: await store.inspection.count(queue, check_state(state), deadline=deadline)
            for state in states
        }

    async def groups(
        self, event: Event[Any, Any] | str | None = None, *, call_timeout: Duration | None = None
    ) -> list[GroupReport]:
        """Return the groups of an event besides `default`, or those of all events."""
        queue = None if event is None else split_group(queue_of(event))[0]
        deadline = self._settings.deadline(call_timeout)
        return await list_groups(self._life.running("list groups").store, queue, deadline=deadline)

    async def controls(
        self, event_or_queue: Event[Any, Any] | str | None = None, *, call_timeout: Duration | None = None
    ) -> list[QueueControls]:
        """Return the queues for which anything is ordered, or what is ordered for one queue.

        That is a pause, a limit, and a time for which finished jobs are kept that the event or workflow
        declares.

        For one queue, `event_or_queue` is its event, the event's name, `name@group`, or the queue.
        """
        controls = Controls(self._life, self._settings)
        return await controls.list(event_or_queue, call_timeout=call_timeout)

    async def cancel(self, job_id: str, reason: str = "", *, call_timeout: Duration | None = None) -> bool:
        """Cancel a job with the jobs of its groups, or a root with its tree, as `EventProvider.cancel`."""
        emitter = self._life.running("cancel a job")
        return await emitter.cancel(check_job_id(job_id), reason, call_timeout=call_timeout)


def _member(member: TreeMember, log: list[str]) -> MemberReport:
    return MemberReport(
        id=member.id,
        state=member.state,
        queue=member.queue,
        attempts=member.attempts,
        stalls=member.stalls,
        created_ms=member.created,
        claimed_ms=member.claimed,
        ended_ms=member.ended,
        error=error_line(member.text) if member.state in ("failed", "cancelled") else "",
        failures=read_failures(
            member.state, member.text, log, Run(started_ms=member.claimed, ended_ms=member.ended)
        ),
        needed_by=member.needs.split(),
    )


def _summary(row: JobRow, state: str) -> JobSummary:
    return JobSummary(
        id=row.id,
        state=state,
        attempts=row.attempts,
        stalls=row.stalls,
        created_ms=row.created,
        due_ms=row.due,
        claimed_ms=row.claimed,
        ended_ms=row.ended,
        error=error_line(row.text),
    )
