"""Jobs: lists, one job with the reason for its state, and the actions on it.

What must always hold: a job is looked up before anything is asked of it, because its queue decides the
rights; texts of errors are shown only after the job's payload was looked through, because handlers put values
into them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from eventbus.admin.jobs.job_report import JobReport
from eventbus.admin.jobs.jobs import JobSummary
from eventbus.admin.jobs.reasons import StateReason
from eventbus.dashboard.desk.desk import ActionResult, Desk, Reason
from eventbus.dashboard.desk.queue_views import event_of_queue
from eventbus.dashboard.desk.queues import find_queue, queue_target
from eventbus.dashboard.desk.rows import BareOrder, Read, Subject
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.problem import Problem
from eventbus.errors import UnknownJob
from eventbus.model.states import JobState

_VALUES = ("payload", "result", "progress", "meta")
_FLOWS = "workflow."
_ACTIONS: tuple[Action, ...] = (
    "job.cancel",
    "job.promote",
    "job.edit",
    "job.retry",
    "job.remove",
    "payload.reveal",
)


class JobsQuery(msgspec.Struct, frozen=True):
    """Which jobs of a queue are listed, of one state after the other; `cursor` is that of the page before."""

    state: list[JobState] = msgspec.field(default_factory=lambda: ["waiting"])
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50
    cursor: str | None = None


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs. `cursor` asks for the next page, None on the last one. `state` is what was asked
    for, with commas.
    """

    queue: str
    state: str
    jobs: list[JobSummary]
    cursor: str | None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job without what is not to be seen, why it is in its state, and the actions that the caller may
    use.
    """

    job: JobReport
    why: StateReason
    has_payload: bool
    may: list[str] = []


class DelayOrder(BareOrder, frozen=True):
    """The job is due so long from now, such as `90s` or `2 hours`."""

    delay: str


class PriorityOrder(BareOrder, frozen=True):
    """-4000 to 4000; lower runs first."""

    priority: Annotated[int, msgspec.Meta(ge=-4000, le=4000)]


class RetryJobOrder(BareOrder, frozen=True):
    """With `rerun` one that completed runs again, too."""

    rerun: bool = False


class RevealOrder(BareOrder, frozen=True):
    """Why somebody must see it; never empty."""

    reason: Annotated[Reason, msgspec.Meta(pattern=r"\S")]  # pyright: ignore[reportGeneralTypeIssues]


async def read_jobs(desk: Desk, caller: Caller, path: dict[str, str], query: JobsQuery) -> JobPage:
    """Return a page of the jobs of a queue in one state or several."""
    queue = find_queue(desk, caller, path["queue"])
    desk.demand_sight(caller, queue_target(queue), f"queue {queue!r}", jobs=True)
    page = await desk.inspector.jobs.list(
        queue, state=query.state, limit=query.limit, cursor=query.cursor or None
    )
    redaction = desk.redaction(caller, queue_target(queue))
    rows = [msgspec.structs.replace(row, error=redaction.error(row.error)) for row in page.jobs]
    return JobPage(queue=queue, state=",".join(query.state), jobs=rows, cursor=page.cursor)


async def read_job(desk: Desk, caller: Caller, path: dict[str, str], _query: Any) -> JobView:
    """Return one job."""
    report, target = await find_job(desk, caller, path["job"])
    why = await desk.inspector.jobs.why(report.id)
    redaction = desk.redaction(caller, target)
    if redaction.names is not None:
        report = await desk.inspector.jobs.get(report.id, names=redaction.names)
    if redaction.hides_all:  # as `edits.shown_payload`
        values = {name: redaction.value(getattr(report, name), name) for name in _VALUES}
        fields: dict[str, Any] = msgspec.to_builtins(
            msgspec.structs.replace(report, key="", **dict.fromkeys(_VALUES))
        )
        report = msgspec.structs.replace(
            msgspec.convert(redaction.errors(fields, are_searched=True), JobReport), **values
        )
    return JobView(
        job=report, why=why, has_payload=redaction.may_read, may=desk.abilities(caller, target, *_ACTIONS)
    )


def _right_to_cancel(target: Target) -> Action:
    """Return what one must be allowed to do: who may not cancel a flow must not do so by its job."""
    return "flow.cancel" if target.event.startswith(_FLOWS) else "job.cancel"


async def cancel_job(desk: Desk, caller: Caller, job: JobReport, order: BareOrder) -> ActionResult:
    """Cancel a job with those of its groups, or a root with its tree."""
    done = await desk.inspector.jobs.cancel(job.id, order.reason or f"cancelled by {caller.actor.name}")
    return ActionResult(changed=done, note="it is cancelled" if done else "it had ended before")


async def promote_job(desk: Desk, _caller: Caller, job: JobReport, _order: BareOrder) -> ActionResult:
    """Make a delayed job due now."""
    return _tell(job, await desk.inspector.jobs.promote(job.id), "it is due now")


async def delay_job(desk: Desk, _caller: Caller, job: JobReport, order: DelayOrder) -> ActionResult:
    """Make a job that waits due later."""
    return _tell(job, await desk.inspector.jobs.delay(job.id, order.delay), f"it is due in {order.delay}")


async def prioritize_job(desk: Desk, _caller: Caller, job: JobReport, order: PriorityOrder) -> ActionResult:
    """Give a job that waits another priority."""
    done = await desk.inspector.jobs.prioritize(job.id, order.priority)
    return _tell(job, done, f"its priority is {order.priority}")


async def retry_job(desk: Desk, _caller: Caller, job: JobReport, order: RetryJobOrder) -> ActionResult:
    """Let a job run again that failed, expired or was cancelled, or with `rerun` completed."""
    return _tell(job, await desk.inspector.jobs.retry(job.id, rerun=order.rerun), "it waits again")


async def remove_job(desk: Desk, _caller: Caller, job: JobReport, _order: BareOrder) -> ActionResult:
    """Remove a job that nobody runs."""
    return _tell(job, await desk.inspector.jobs.remove(job.id), "it is removed")


def _tell(job: JobReport, done: bool, note: str) -> ActionResult:
    """Return what became of a job; `note` says what it is if that was possible."""
    return ActionResult(changed=done, note=note if done else f"it is {job.state}, and was left as it is")


async def reveal_job(desk: Desk, _caller: Caller, job: JobReport, _order: RevealOrder) -> ActionResult:
    """Return what the redaction hides of a job. It needs a reason, which stands in the audit."""
    whole = await desk.inspector.jobs.get(job.id, reveal=True)
    value = {name: getattr(whole, name) for name in ("payload", "result", "progress", "errors")}
    return ActionResult(changed=False, note="revealed", value=value)


def job_target(job: JobReport) -> Target:
    """Return what rights are asked about."""
    return Target("job", job.id, event_of_queue(job.queue))


async def find_job(desk: Desk, caller: Caller, job_id: str) -> tuple[JobReport, Target]:
    """Return a job, and what rights are asked about. Raises Problem, 404, also for one that the caller may
    not see.
    """
    report = await desk.inspector.jobs.get(job_id)
    target = job_target(report)
    if not desk.sees(caller, target):
        raise Problem(404, str(UnknownJob(job_id)))  # in the words for a job that does not exist
    return report, target


JOB: Subject[JobReport] = Subject("/jobs/{job}", find_job)


READS = (
    Read(
        "/queues/{queue}/jobs",
        "A page of the jobs of a queue in one state, or in several: `state=failed&state=cancelled`.",
        JobPage,
        read_jobs,
        JobsQuery,
    ),
    Read("/jobs/{job}", "One job, and why it is in its state.", JobView, read_job),
)
ACTS = (
    JOB.row("cancel", "Cancel a job.", _right_to_cancel, BareOrder, cancel_job),
    JOB.row("retry", "Let a job run again that has ended.", "job.retry", RetryJobOrder, retry_job),
    JOB.row("remove", "Remove a job that nobody runs.", "job.remove", BareOrder, remove_job, method="DELETE"),
    JOB.row("promote", "Make a delayed job due now.", "job.promote", BareOrder, promote_job),
    JOB.row("delay", "Make a job that waits due later.", "job.edit", DelayOrder, delay_job),
    JOB.row("priority", "Give a job that waits a priority.", "job.edit", PriorityOrder, prioritize_job),
    JOB.row(
        "reveal",
        "Return what is redacted of a job.",
        "payload.reveal",
        RevealOrder,
        reveal_job,
        is_kept=False,
    ),
)
