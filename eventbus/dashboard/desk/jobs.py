"""Jobs: lists, one job with the reason for its state, and the actions on it.

What must always hold: a job is looked up before anything is asked of it, because its queue decides the
rights; texts of errors are shown only after the job's payload was looked through, because handlers put values
into them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from eventbus.admin.jobs.job_report import JobReport
from eventbus.admin.jobs.jobs import JobSummary
from eventbus.admin.jobs.reasons import StateReason
from eventbus.dashboard.desk.desk import ActionResult, Desk, Reason
from eventbus.dashboard.desk.queue_views import event_of_queue
from eventbus.dashboard.desk.queues import find_queue, queue_target
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.problem import Problem
from eventbus.errors import UnknownJob
from eventbus.model.states import JobState

__all__ = [
    "CancelOrder",
    "DelayOrder",
    "JobPage",
    "JobView",
    "JobsQuery",
    "PriorityOrder",
    "PromoteOrder",
    "RemoveJobOrder",
    "RetryJobOrder",
    "RevealOrder",
    "cancel_job",
    "delay_job",
    "find_job",
    "prioritize_job",
    "promote_job",
    "read_job",
    "read_jobs",
    "remove_job",
    "retry_job",
    "reveal_job",
]

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


class CancelOrder(msgspec.Struct, frozen=True):
    """Why it is cancelled."""

    reason: Reason = ""


class PromoteOrder(msgspec.Struct, frozen=True):
    """Nothing more is said."""

    reason: Reason = ""


class DelayOrder(msgspec.Struct, frozen=True):
    """The job is due so long from now, such as `90s` or `2 hours`."""

    delay: str
    reason: Reason = ""


class PriorityOrder(msgspec.Struct, frozen=True):
    """-4000 to 4000; lower runs first."""

    priority: Annotated[int, msgspec.Meta(ge=-4000, le=4000)]
    reason: Reason = ""


class RetryJobOrder(msgspec.Struct, frozen=True):
    """With `rerun` one that completed runs again, too."""

    rerun: bool = False
    reason: Reason = ""


class RemoveJobOrder(msgspec.Struct, frozen=True):
    """Nothing more is said."""

    reason: Reason = ""


class RevealOrder(msgspec.Struct, frozen=True):
    """Why somebody must see it; never empty."""

    reason: Annotated[Reason, msgspec.Meta(pattern=r"\S")]


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
        job=report,
        why=why,
        has_payload=redaction.may_read,
        may=desk.abilities(caller, target, *_ACTIONS),
    )


async def cancel_job(desk: Desk, caller: Caller, path: dict[str, str], order: CancelOrder) -> ActionResult:
    """Cancel a job with those of its groups, or a root with its tree."""
    report, target = await find_job(desk, caller, path["job"])

    async def cancel() -> ActionResult:
        reason = order.reason or f"cancelled by {caller.actor.name}"
        done = await desk.inspector.jobs.cancel(report.id, reason)
        return ActionResult(changed=done, note="it is cancelled" if done else "it had ended before")

    # Who may not cancel a flow must not do so by its job.
    action = "flow.cancel" if target.event.startswith(_FLOWS) else "job.cancel"
    return await desk.act(caller, action, target, cancel, reason=order.reason)


async def promote_job(desk: Desk, caller: Caller, path: dict[str, str], order: PromoteOrder) -> ActionResult:
    """Make a delayed job due now."""
    ask = desk.inspector.jobs.promote
    return await _edit(desk, caller, path["job"], "job.promote", ask, order.reason, "it is due now")


async def delay_job(desk: Desk, caller: Caller, path: dict[str, str], order: DelayOrder) -> ActionResult:
    """Make a job that waits due later."""
    ask = partial(desk.inspector.jobs.delay, delay=order.delay)
    return await _edit(
        desk, caller, path["job"], "job.edit", ask, order.reason, f"it is due in {order.delay}"
    )


async def prioritize_job(
    desk: Desk, caller: Caller, path: dict[str, str], order: PriorityOrder
) -> ActionResult:
    """Give a job that waits another priority."""
    ask = partial(desk.inspector.jobs.prioritize, priority=order.priority)
    return await _edit(
        desk, caller, path["job"], "job.edit", ask, order.reason, f"its priority is {order.priority}"
    )


async def retry_job(desk: Desk, caller: Caller, path: dict[str, str], order: RetryJobOrder) -> ActionResult:
    """Let a job run again that failed, expired or was cancelled, or with `rerun` completed."""
    ask = partial(desk.inspector.jobs.retry, rerun=order.rerun)
    return await _edit(desk, caller, path["job"], "job.retry", ask, order.reason, "it waits again")


async def remove_job(desk: Desk, caller: Caller, path: dict[str, str], order: RemoveJobOrder) -> ActionResult:
    """Remove a job that nobody runs."""
    ask = desk.inspector.jobs.remove
    return await _edit(desk, caller, path["job"], "job.remove", ask, order.reason, "it is removed")


async def reveal_job(desk: Desk, caller: Caller, path: dict[str, str], order: RevealOrder) -> ActionResult:
    """Return what the redaction hides of a job. It needs a reason, which stands in the audit."""
    report, target = await find_job(desk, caller, path["job"])

    async def reveal() -> ActionResult:
        whole = await desk.inspector.jobs.get(report.id, reveal=True)
        value = {
            "payload": whole.payload,
            "result": whole.result,
            "progress": whole.progress,
            "errors": whole.errors,
        }
        return ActionResult(changed=False, note="revealed", value=value)

    return await desk.act(caller, "payload.reveal", target, reveal, reason=order.reason)


async def find_job(desk: Desk, caller: Caller, job_id: str) -> tuple[JobReport, Target]:
    """Return a job, and what rights are asked about. Raises Problem, 404, also for one that the caller may
    not see.
    """
    report = await desk.inspector.jobs.get(job_id)
    target = Target("job", report.id, event_of_queue(report.queue))
    if not desk.sees(caller, target):
        raise Problem(404, str(UnknownJob(job_id)))  # in the words for a job that does not exist
    return report, target


async def _edit(
    desk: Desk,
    caller: Caller,
    job_id: str,
    action: Action,
    ask: Callable[[str], Awaitable[bool]],
    reason: str,
    note: str,
) -> ActionResult:
    """Ask for the change of a job; `note` says what it is then."""
    report, target = await find_job(desk, caller, job_id)

    async def edit() -> ActionResult:
        done = await ask(report.id)
        return ActionResult(
            changed=done, note=note if done else f"it is {report.state}, and was left as it is"
        )

    return await desk.act(caller, action, target, edit, reason=reason)
