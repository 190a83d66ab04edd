"""The inspector: reads the jobs in the server, and cancels them.

The command line and dashboards use nothing else. Its reports are true for the moment at which the server
answered; nothing is cached. Each of its namespaces has the calls for one noun, and stands whole in the file
of its name.
"""

from __future__ import annotations

from typing import Final

from eventbus.admin.audit import Audit
from eventbus.admin.events import Events
from eventbus.admin.jobs.jobs import Jobs
from eventbus.admin.namespace import OldName
from eventbus.admin.operations import Operations
from eventbus.admin.queues import Queues
from eventbus.admin.server import Server
from eventbus.admin.trees import Trees
from eventbus.admin.workers import Workers
from eventbus.emit.route import Routes
from eventbus.lifecycle import Lifecycle
from eventbus.model.durations import Duration
from eventbus.settings.settings import Settings
from eventbus.store.bounds import CALL_ROWS, PAGE_BYTES, PAGE_JOBS
from eventbus.store.calls.queries import Cursor, JobLook, JobRow
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

_IN_LOOP = 64 * 1024
"""A job with more bytes than this is searched for hidden values in a thread, so that the event loop goes on.
"""
_PAGES = 20
"""How many pages are looked at for one that has a job, because whoever looks takes an empty one for the end.
"""


class Inspector:
    """Reads the jobs in the server of a started provider, and changes those that wait.

    Each call raises ProviderStopped while the provider is not started, and StoreError when the server does
    not answer in time. That is `reply_timeout` for the whole call, unless `within` says another time.
    """

    def __init__(
        self, life: Lifecycle, settings: Settings, routes: Routes, call_timeout: Duration | None = None
    ) -> None:
        self._life = life
        self._settings = settings
        self._routes = routes
        self.jobs: Jobs = Jobs(life, settings, routes, call_timeout)
        """Jobs, one at a time."""
        self.trees: Trees = Trees(life, settings, routes, call_timeout)
        """Roots with their members, such as flows."""
        self.queues: Queues = Queues(life, settings, routes, call_timeout)
        """Queues, and what concerns all jobs of one."""
        self.workers: Workers = Workers(life, settings, routes, call_timeout)
        """The workers of the fleet."""
        self.operations: Operations = Operations(life, settings, routes, call_timeout)
        """Bulk operations, which go on when whoever asked for them is gone."""
        self.audit: Audit = Audit(life, settings, routes, call_timeout)
        """Who did what on dashboards."""
        self.server: Server = Server(life, settings, routes, call_timeout)
        """The server itself."""
        self.events: Events = Events(life, settings, routes, call_timeout)
        """The events that this program knows."""

    def within(self, call_timeout: Duration | None) -> Inspector:
        """Return an inspector each of whose calls may take this long: seconds, a timedelta or text; None:
        the setting `reply_timeout`.

            report = await provider.inspector.within("2s").jobs.get(job_id)

        Raises DefinitionError for a time that is not above 0.
        """
        self._settings.call_timeout(call_timeout)
        return Inspector(self._life, self._settings, self._routes, call_timeout)

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
                root_id, first=len(members), limit=CALL_ROWS, max_bytes=PAGE_BYTES, deadline=deadline
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
        if not 0 < limit <= PAGE_JOBS:
            raise DefinitionError(f"expected limit to be 1 to {PAGE_JOBS}, got: {shown(limit)}")
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
