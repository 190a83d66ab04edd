"""Jobs of events and flows, one at a time: finding them, reading them, and changing those that nobody runs.

Not here: what is done to all jobs of a queue (`Queues`), and trees (`Trees`). What must always hold: a job
that somebody runs is changed by `cancel` alone; a payload that does not fit its event is refused before
anything is sent; a payload that somebody else has changed meanwhile is read again, not overwritten blindly; a
record that is damaged or foreign is read without an error.

Crash windows of an edit: `answer-lost` (the call is sent again, and the record knows it: it is made once),
`changed-between` (the body that was read is another one by now: it is read and compared anew),
`claimed-between` (the record is active: nothing is changed).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from eventbus.admin.controls import Controls
from eventbus.admin.jobs.attempts import error_line
from eventbus.admin.jobs.edits import (
    JobEdit,
    check_whole,
    differences_of,
    mark_body,
    revision_of,
    was_edited,
    with_payload,
)
from eventbus.admin.jobs.field_search import FieldMatches, FieldSearch, read_field
from eventbus.admin.jobs.job_cursor import (
    check_ended,
    check_state,
    check_states,
    cut_older,
    read_cursor,
    read_place,
    write_place,
)
from eventbus.admin.jobs.job_report import JobReport, look_at, read_job, worker_of
from eventbus.admin.jobs.lookups import ChainSearch, FoundJobs, find_by_key, list_searched
from eventbus.admin.jobs.reasons import (
    StateReason,
    WaitFacts,
    explain,
    explain_orphan,
    look_around,
    look_before,
)
from eventbus.admin.jobs.retrials import PURGED, RETRIED, remove_jobs, was_done
from eventbus.admin.namespace import Namespace, OldName
from eventbus.admin.queue_name import queue_of
from eventbus.emit.route import Route
from eventbus.errors import DefinitionError, UnknownJob, UsageError
from eventbus.model import chance
from eventbus.model.durations import Duration, milliseconds
from eventbus.model.event import Event
from eventbus.model.names import (
    EVENT_QUEUES,
    check_correlation_id,
    check_job_id,
    check_key,
    shown,
    split_group,
)
from eventbus.model.redaction.hidden_values import HiddenValues
from eventbus.model.redaction.redacting import Names, is_secret_name
from eventbus.model.states import JobState
from eventbus.settings.keywords import check_priority
from eventbus.store.bounds import PAGE_JOBS
from eventbus.store.calls.control_store import Edit
from eventbus.store.calls.queries import Cursor, JobLook, JobRow
from eventbus.store.keys import key_digest

_PAGES = 20
"""How many pages are looked at for one that has a job, because whoever looks takes an empty one for the end.
"""
_PLACED = ("waiting", "delayed")
_READS = 5
"""How often a payload is read again that others change at the same time."""


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


class Jobs(Namespace):
    """Jobs, one at a time: `get` one by its id, `list` or `find` some, see `why` one waits, change one.

    What changes a job returns False, and changes nothing, if the job runs, has ended, or is in another state
    that the method does not name. It raises UnknownJob, and UsageError for a step of a flow and for a flow
    that has begun.
    """

    async def get(
        self, job_id: str, *, reveal: bool = False, names: Callable[[str], bool] | None = None
    ) -> JobReport:
        """Return the report of a job; `<id>@<group>` is the id of a group's job.

        What is marked as Sensitive is hidden, and what its errors quote of values with secret names, unless
        `reveal`. With `names`, a function that says of the name of a field whether its value is hidden, these
        values are hidden everywhere, too. Raises UnknownJob, also for text that is not a job id.
        """
        store, deadline = self._begin("look at a job")
        return await read_job(store, self._routes, job_id, reveal=reveal, names=names, deadline=deadline)

    async def why(self, job_id: str) -> StateReason:
        """Return why a job is in its state: what keeps it from running, who runs it, or that it has ended.

        Raises UnknownJob, also for text that is not a job id.
        """
        store, deadline = self._begin("look at a job")
        look = await look_at(store, job_id, deadline)
        fields, worker = look.fields, worker_of(look.fields.get("token", ""))
        if fields.get("state") == "active" and look.lease_end:
            now = await store.inspection.roster.now(deadline=deadline)
            if look.lease_end < now:
                return explain_orphan(fields, worker, look.lease_end)
        around = WaitFacts()
        if fields.get("state") == "waiting":
            (queue,) = await Controls(self._life, self._settings).look([fields["queue"]], deadline)
            around = await look_around(store, queue, fields.get("limit", ""), deadline)
        elif fields.get("state") == "delayed" and "after" in fields:
            around = await look_before(store, fields["after"], deadline)
        return explain(fields, worker, around)

    async def find(
        self,
        event_or_queue: Event[Any, Any] | str | None = None,
        *,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
    ) -> FoundJobs:
        """Find the jobs of an event with its groups, or of one queue, such as that of a workflow, by their
        idempotency key or their correlation id.

        By `idempotency_key` these are the jobs for which the key stands now, and the one that comes after it,
        if any. By `correlation_id`, without an event: of all events and workflows. That looks at the jobs
        themselves: running ones, then waiting, delayed and parked ones, then the newest of those that ended,
        20,000 in all. Flows are among them, and those of sub-workflows while they are open; the jobs of their
        steps are not.

        Raises DefinitionError unless exactly one of both is given, and for a key without an event;
        ProviderStopped and StoreError.
        """
        if (idempotency_key is None) == (correlation_id is None):
            raise DefinitionError("expected either idempotency_key or correlation_id")
        store, deadline = self._begin("find jobs")
        if idempotency_key is not None and event_or_queue is None:
            raise DefinitionError("expected the event of the key, because each event has keys of its own")
        queues = await list_searched(store, event_or_queue, deadline)
        if idempotency_key is not None:
            return await find_by_key(store, queues, key_digest(check_key(idempotency_key)), deadline)
        return await ChainSearch(store, check_correlation_id(correlation_id), deadline).run(queues)

    async def find_by_field(
        self,
        event_or_queue: Event[Any, Any] | str,
        field: str,
        *,
        state: str = "waiting",
        names: Callable[[str], bool] | None = None,
        cursor: str | None = None,
    ) -> FieldMatches:
        """Find the jobs of one queue and state by a field of their payload, such as `order_id:7` or
        `customer.name:Ada`.

        A number in the path is the place in a list. The value is compared as text: `7` finds 7 and "7". It
        looks at 10,000 jobs in the order of `list`, ended ones newest first. With `names`, a function that
        says of the name of a field whether its value is hidden, these values are hidden before they are
        compared, as sensitive ones are. Raises DefinitionError, ProviderStopped and StoreError.
        """
        queue, path_and_value = queue_of(event_or_queue), read_field(field)
        place: Cursor | None = read_cursor(cursor)
        check_state(state)
        store, deadline = self._begin("find jobs")
        search = FieldSearch(store, self._routes, path_and_value, names=names, deadline=deadline)
        return await search.run(queue, state, place)

    async def cancel(self, job_id: str, reason: str = "") -> bool:
        """Cancel a job with the jobs of its groups, or a root with its tree, as `EventProvider.cancel`."""
        emitter = self._life.running("cancel a job")
        return await emitter.tracker.cancel(check_job_id(job_id), reason, call_timeout=self._call_timeout)

    async def promote(self, job_id: str) -> bool:
        """Make a delayed job due now, also one that waits for its next attempt."""
        return await self._edit(job_id, ("delayed",), due=0, deadline=self._deadline())

    async def delay(self, job_id: str, delay: Duration) -> bool:
        """Make a waiting or delayed job due in `delay` (seconds, a timedelta or text) from now.

        The `reply_timeout` of an emitter that awaits the job counts from the due time that it asked for.
        """
        due_ms = milliseconds(delay, setting="delay")
        return await self._edit(job_id, _PLACED, due=due_ms, deadline=self._deadline())

    async def prioritize(self, job_id: str, priority: int) -> bool:
        """Give a waiting or delayed job another priority: -4000..4000, lower first. It goes to the end of
        that.
        """
        deadline = self._deadline()
        return await self._edit(job_id, _PLACED, priority=check_priority(priority), deadline=deadline)

    async def replace_payload(self, event: Event[Any, Any] | str, job_id: str, payload: Any) -> bool:
        """Give a waiting, delayed or parked job of `event` another payload. Its meta data and its key stay;
        its limit key is that of the new payload.

        Raises PayloadError for a payload that does not fit the event, or that holds `•••` as a report shows
        it instead of a sensitive value; and UsageError for a job of another event.
        """
        route, deadline = self._routes.find(event), self._deadline()
        encoded, limit = msgspec.Raw(route.encode_payload(payload)), route.limit_key(payload)
        check_whole(msgspec.json.decode(encoded))
        for _ in range(_READS):
            body = await self._read_body(route, job_id, deadline)
            print_ = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()
            new = with_payload(body, encoded, job_id)
            change = {"print": print_, "body": new, "limit": limit}
            word = await self._ask(job_id, (*_PLACED, "parked"), deadline=deadline, **change)
            if word != "other":
                return was_edited(word, job_id)
        raise UsageError(f"the payload of job {job_id!r} is changed by others all the time; try again")

    async def edit(
        self,
        job_id: str,
        payload: Any,
        *,
        revision: str | None = None,
        reveal: bool = True,
        names: Names | None = is_secret_name,
    ) -> JobEdit:
        """Give a waiting, delayed or parked job of an event another payload, given as JSON values.

        With `revision`, that of a report, nothing is changed if somebody has edited or moved the job since,
        or if it was tried. Where this provider defines the event, the payload must fit it, and gives the
        limit key. Meta data and key stay. Without `reveal` the editor may not see what is marked as
        Sensitive, nor fields of which `names` says so. If the job has such values, texts about it, such as
        errors, are from now on hidden as a whole, because the editor could put guesses beside them.

        Raises PayloadError, also for a payload that holds `•••` as a report shows it instead of a sensitive
        value; and UsageError for a job of a flow or a tree.
        """
        deadline = self._deadline()
        check_whole(payload)
        store = self._store("edit a job")
        for _ in range(_READS):
            look = await store.inspection.job(check_job_id(job_id), deadline=deadline)
            if not look.fields:
                raise UnknownJob(job_id)
            now = revision_of(look.fields)
            differences = [] if revision is None else differences_of(revision, now)
            state = look.fields.get("state", "unknown")
            if differences:
                return JobEdit(changed=False, state=state, revision=now, differences=differences)
            change = self._encode(look, job_id, payload)
            if not reveal and self._hides(look, names):
                change["body"] = mark_body(change["body"])
            word = await self._ask(job_id, (*_PLACED, "parked"), deadline=deadline, **change)
            if word != "other":
                changed = was_edited(word, job_id)
                look = await store.inspection.job(job_id, deadline=deadline)
                found = look.fields.get("state", word)
                return JobEdit(changed=changed, state=found, revision=revision_of(look.fields))
        raise UsageError(f"the payload of job {job_id!r} is changed by others all the time; try again")

    async def retry(self, job_id: str, *, rerun: bool = False) -> bool:
        """Let a job that failed, expired or was cancelled wait again, as if it were new: with all its
        attempts before it.

        With `rerun` one that completed runs again, too; its result is gone then, and who emits with its key
        joins the new run.

        Return False, and change nothing, if it is in another state. Its payload, key, priority and limit key
        stay, and so does what it saved. Its last error goes into its `failures`. An emitter that got the
        failure hears no second outcome. Whoever asks from now on (`provider.result`), or emits with its key,
        gets the next one.

        `<id>@<group>` is the job of a group; others of the emission are not touched. Raises UsageError also
        if its key stands for a later job by now, if its group was removed, and if its record is damaged.
        """
        store, deadline = self._begin("retry a job")
        (word,) = await store.controls.retrials.retry(
            [check_job_id(job_id)], states=(*RETRIED, *(("completed",) if rerun else ())), deadline=deadline
        )
        return was_done(word, job_id, "retried")

    async def remove(self, job_id: str) -> bool:
        """Remove a job that nobody runs. One that waits, is delayed or parked is cancelled first, and who
        awaits it is told.

        Return False, and change nothing, while it runs: cancel it first. A removed job is listed no more and
        cannot be retried. For `get`, `why` and `find` it is unknown at once, and who watches is told. The
        record of one that ended within the last minutes is gone a few minutes after its end: until then its
        emitter finds the outcome. If the answer of the server was lost on the way, the job may be unknown
        already.

        `<id>@<group>` is the job of a group; others of the emission are not touched.
        """
        store, deadline = self._begin("remove a job")
        (word,) = await remove_jobs(store, self._settings, [check_job_id(job_id)], PURGED, deadline=deadline)
        return was_done(word, job_id, "removed")

    async def list(
        self,
        event_or_queue: Event[Any, Any] | str,
        *,
        state: JobState | Sequence[JobState] = "waiting",
        limit: int = 50,
        cursor: str | None = None,
        since: Duration | None = None,
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
        have ended are not listed; `trees.get` has them.
        """
        queue, states = queue_of(event_or_queue), check_states(state)
        current, place = read_place(cursor, states)
        if not 0 < limit <= PAGE_JOBS:
            raise DefinitionError(f"expected limit to be 1 to {PAGE_JOBS}, got: {shown(limit)}")
        store, deadline = self._begin("list jobs")
        found: list[JobSummary] = []
        oldest = 0 if since is None else await self._ended_since(states, since, deadline)
        for _ in range(_PAGES):
            left = limit - len(found)
            page = await store.inspection.jobs(queue, current, cursor=place, limit=left, deadline=deadline)
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

    __call__: Final = OldName(list)  # noqa: A003  (the method)

    async def _ended_since(self, states: Sequence[str], since: Duration, deadline: float) -> int:
        for state in states:
            check_ended(state)
        roster = self._store("list jobs").inspection.roster
        return await roster.now(deadline=deadline) - milliseconds(since, setting="since")

    def _encode(self, look: JobLook, job_id: str, payload: Any) -> dict[str, str]:
        """Return what a change sends: the print of the body that it replaces, the new one, and its
        limit key.
        """
        queue = split_group(look.fields.get("queue", ""))[0]
        if not queue.startswith(EVENT_QUEUES) or look.fields.get("root"):
            raise UsageError(f"job {job_id!r} belongs to a flow or a tree, whose input stays as it is")
        name = queue.removeprefix(EVENT_QUEUES)
        route = Route(self._routes.definition(name) or Event(name), self._settings)
        typed = route.payload.decode(msgspec.json.encode(payload))
        encoded = msgspec.Raw(route.encode_payload(typed))
        print_ = hashlib.sha1(look.body.encode(), usedforsecurity=False).hexdigest()
        return {
            "print": print_,
            "body": with_payload(look.body, encoded, job_id),
            "limit": route.limit_key(typed),
        }

    def _hides(self, look: JobLook, names: Names | None) -> bool:
        event = self._routes.known(split_group(look.fields["queue"])[0].removeprefix(EVENT_QUEUES))
        return HiddenValues(look.body, event, names=names).may_hide

    async def _read_body(self, route: Route, job_id: str, deadline: float) -> str:
        store = self._store("replace a payload")
        look = await store.inspection.job(check_job_id(job_id), deadline=deadline)
        if not look.fields:
            raise UnknownJob(job_id)
        queue = look.fields.get("queue", "")
        if split_group(queue)[0] != route.queue:
            raise UsageError(f"job {job_id!r} is in queue {queue!r}, and not one of event {route.name!r}")
        return look.body

    async def _edit(self, job_id: str, states: tuple[str, ...], *, deadline: float, **change: Any) -> bool:
        return was_edited(await self._ask(check_job_id(job_id), states, deadline=deadline, **change), job_id)

    async def _ask(self, job_id: str, states: tuple[str, ...], *, deadline: float, **change: Any) -> str:
        edit = Edit(job_id, chance.token(8), states, **change)
        return await self._store("change a job").controls.edit(edit, deadline=deadline)


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
