"""The report of one job, read from its record in the server.

What must always hold: a record that is damaged or foreign, or that an older release wrote, is reported
without an error. What it does not have is 0 or empty.
"""

from __future__ import annotations

from typing import Any

import msgspec
from anyio import to_thread

from eventbus.admin.jobs.attempts import FailureReport, RunTimes, error_line, read_failures
from eventbus.admin.jobs.chain import chain_of
from eventbus.admin.jobs.edits import revision_of
from eventbus.admin.jobs.timeline import AttemptReport, TimelineEntry, read_attempts, tell_timeline
from eventbus.emit.route import Routes
from eventbus.errors import UnknownJob
from eventbus.model.message import decode_message
from eventbus.model.names import EVENT_QUEUES, check_job_id, split_group
from eventbus.model.redaction.hidden_values import HiddenValues
from eventbus.model.redaction.places import DOTS
from eventbus.model.redaction.redacting import Names
from eventbus.store.calls.error_text import plain
from eventbus.store.calls.queries import JobLook
from eventbus.store.readable import number_in
from eventbus.store.store import Store

_IN_LOOP = 64 * 1024
"""A job with more bytes than this is searched for hidden values in a thread, so that the event loop goes on.
"""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a job kept (`ctx.keep_line`), with when that was, a Unix time in ms, and the id of the
    worker.
    """

    at_ms: int
    worker: str
    text: str


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """One job. Times are Unix times in ms of the server's clock, 0 where there is none.

    `payload` is the payload of an event; for other jobs it is the whole body. Text that is not JSON stays
    text. `failures` are the newest 50 of the failed attempts and stalls, oldest first, including the last
    one; `errors` has one line for each of them. `worker` is the id of the worker that runs the job until
    `lease_ms`, or that ran it last. `tree` is the id of the root if the job is a member of a tree. `is_root`
    is True if the job is a root itself. `stop` says why the tree of a root stops: `failed`, `cancelled` or
    `timeout`.

    `emitted_ms` is when the server took the job. `first_started_ms` is when a worker claimed it first, in
    this run of a tree, and `started_ms` when one claimed it last; `ended_ms` is when its end was recorded.
    `created_ms` and `claimed_ms` are `emitted_ms` and `started_ms` under the names that lists of jobs have.

    `attempts_log` has each attempt and stall that is known, oldest first, and `timeline` what happened to the
    job and what is due, in order. `lines` are the newest 100 that the job kept itself, oldest first.
    """

    id: str
    state: str
    queue: str
    payload: Any = None
    result: Any = None
    error: str = ""
    errors: list[str] = []
    failures: list[FailureReport] = []
    attempts: int = 0
    stalls: int = 0
    progress: Any = None
    emitted_ms: int = 0
    first_started_ms: int = 0
    started_ms: int = 0
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
    """Why the job is parked."""
    attempts_log: list[AttemptReport] = []
    timeline: list[TimelineEntry] = []
    lines: list[LogLine] = []
    revision: str = ""
    """What an edit compares, so that it overwrites none of others."""
    correlation_id: str = ""
    """The chain of emissions and flows that it belongs to; `inspector.find(correlation_id=...)` finds the
    others.
    """
    causation_id: str = ""
    """The job whose handler emitted it, or started its flow; `''` if none did."""
    meta: dict[str, Any] | None = None
    key: str = ""
    """Its idempotency key, as it was given."""


async def look_at(store: Store, job_id: str, deadline: float) -> JobLook:
    """Return the record of a job. Raises UnknownJob, also for text that is not a job id."""
    look = await store.inspection.job(check_job_id(job_id), deadline=deadline)
    if not look.fields or "removed" in look.fields:  # a removed one stays for its emitter alone
        raise UnknownJob(job_id)
    return look


async def read_job(
    store: Store,
    routes: Routes,
    job_id: str,
    *,
    reveal: bool = False,
    names: Names | None = None,
    deadline: float,
) -> JobReport:
    """Return the report of a job; see `Inspector.jobs.get`."""
    look = await look_at(store, job_id, deadline)
    name = split_group(look.fields.get("queue", ""))[0].removeprefix(EVENT_QUEUES)
    hidden = HiddenValues(look.body, routes.known(name), job_id=job_id, names=names, reveals=reveal)
    if len(look.body) + len(look.text) <= _IN_LOOP:
        return report_of(job_id, look, hidden)
    return await to_thread.run_sync(report_of, job_id, look, hidden)  # so that the loop goes on


def report_of(job_id: str, look: JobLook, hidden: HiddenValues) -> JobReport:
    """Return the report of what was looked up of a job, without what is `hidden`.

    What the job said of itself before its payload was edited may quote the old one, which nobody knows any
    more: that goes.
    """
    fields = look.fields
    is_stale = "edited" in fields and hidden.may_hide
    state, queue = fields.get("state", "unknown"), fields.get("queue", "")
    last = RunTimes(
        number_in(fields, "due"),
        number_in(fields, "claimed"),
        number_in(fields, "ended"),
        worker_of(fields.get("token", "")) if state == "active" else fields.get("worker", ""),
    )
    failures = read_failures(state, look.text, look.log, last, hidden)
    attempts = read_attempts(fields, failures, last)
    chain = chain_of(job_id, queue, look.body)
    emitted_ms = number_in(fields, "created")
    started_ms = attempts[-1].started_ms if attempts else 0
    return JobReport(
        id=job_id,
        state=state,
        queue=queue,
        payload=_payload(look.body, queue, hidden),
        result=hidden.in_result(_value(look.text)) if state == "completed" else None,
        error=error_line(look.text, hidden) if state in ("failed", "cancelled") else "",
        errors=[str(failure) for failure in failures],
        failures=failures,
        attempts=number_in(fields, "attempts"),
        stalls=number_in(fields, "stalls"),
        progress=DOTS if is_stale and look.progress else hidden.in_texts(_value(look.progress)),
        emitted_ms=emitted_ms,
        first_started_ms=_first_start(fields, attempts),
        started_ms=started_ms,
        created_ms=emitted_ms,
        due_ms=last.due_ms,
        claimed_ms=last.started_ms,
        ended_ms=last.ended_ms,
        worker=last.worker or (attempts[-1].worker if attempts else ""),
        lease_ms=look.lease_end if state == "active" else 0,
        tree=fields.get("root", ""),
        is_root="tree" in fields,
        run=number_in(fields, "run") or 1,
        stop=fields.get("stop", ""),
        why=fields.get("why", "") if state == "parked" else "",
        attempts_log=attempts,
        timeline=tell_timeline(fields, attempts),
        revision=revision_of(fields),
        correlation_id=plain(chain.correlation_id),
        causation_id=plain(chain.causation_id),
        meta=hidden.in_texts(chain.meta),
        key=hidden.in_text(plain(chain.key)),
        lines=[_line(text, hidden, is_stale=is_stale) for text in look.lines],
    )


def _first_start(fields: dict[str, str], attempts: list[AttemptReport]) -> int:
    """Return when the job was claimed first.

    A record of an older release does not say it. Then the first entry of its log does, if it has its time.
    """
    first = number_in(fields, "first")
    return first or (attempts[0].started_ms if attempts else 0)


def _line(text: str, hidden: HiddenValues, *, is_stale: bool) -> LogLine:
    """Read a line that a job kept; one that somebody else wrote is told as it is."""
    at, _, rest = text.partition(" ")
    token, _, rest = rest.partition(" ")
    number, _, line = rest.partition(" ")
    if not (at.isdecimal() and number.isdecimal()):
        at, token, line = "0", "", text
    shown = DOTS if is_stale else hidden.in_text(plain(line))
    return LogLine(at_ms=int(at), worker=worker_of(token), text=shown)


def worker_of(token: str) -> str:
    """Return the worker's id in the token of a lease, `<worker>[+]:<call>`."""
    return token.partition(":")[0].partition("+")[0]


def _payload(body: str, queue: str, hidden: HiddenValues) -> Any:
    if queue.startswith(EVENT_QUEUES):
        try:
            return hidden.in_payload(msgspec.json.decode(decode_message(body).payload))
        except (msgspec.MsgspecError, UnicodeError):
            return plain(body)
    return hidden.in_body(_value(body))


def _value(text: str) -> Any:
    """Return the value of JSON text, or the text itself if it is not JSON."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return plain(text)
