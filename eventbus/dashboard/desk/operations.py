"""Bulk operations: preview them, begin them, look how far they are, stop them.

What must always hold: an operation begins only with a count that is near to what whoever asks was shown,
otherwise they are asked again; the same id begins one operation, and is answered with it; who may not do it
to one job of the queue may not do it to many; named jobs are of that queue.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from eventbus.admin.operations import OperationAction, OperationPreview, OperationReport
from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.desk import ActionResult, Desk
from eventbus.dashboard.desk.failures import find_group
from eventbus.dashboard.desk.queues import find_queue, queue_target
from eventbus.dashboard.desk.rows import Act, BareOrder, NoQuery, Read, Subject
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.problem import Problem
from eventbus.engine.job_actions import ACTIONS
from eventbus.errors import UsageError
from eventbus.model.states import JobState

_RIGHTS: dict[OperationAction, Action] = {
    "retry": "job.retry",
    "remove": "queue.clean",
    "cancel": "job.cancel",
    "promote": "job.promote",
}
_LISTED = 100


Expected: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
OperationId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None


class CleanOrder(BareOrder, frozen=True):
    """Remove the jobs of the queue in `state`, those of one group of failures, or those that are named.

    `expected` is how many they were when somebody looked; 412 if they are not by now, give or take a tenth,
    unless `force`. With `dry_run` they are only counted. The same `id` begins one operation. `jobs` are ids,
    1,000 at most; in a form with spaces between.
    """

    expected: Expected = 0
    state: JobState | None = None
    failure: str | None = None
    older_than: str | None = None
    jobs: Annotated[list[str], msgspec.Meta(max_length=1000)] | str | None = None
    id: OperationId = None
    force: bool = False
    dry_run: bool = False


class OperationOrder(CleanOrder, frozen=True, kw_only=True):
    """Retry, cancel, promote or remove them: `action`."""

    action: OperationAction


class RetryGroupOrder(BareOrder, frozen=True):
    """`expected` is how many jobs the group had when it was looked at."""

    expected: Expected
    id: OperationId = None


class PreviewQuery(msgspec.Struct, frozen=True):
    """What an operation would be about; see `OperationOrder`."""

    action: OperationAction = "retry"
    state: JobState | None = None
    failure: str | None = None
    older_than: str | None = None
    jobs: list[str] | str | None = None


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """One operation. Which error its jobs have is told as the group's page tells it, so not here. `may`: what
    the caller may do.
    """

    operation: OperationReport
    may: list[str] = []


class OperationList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest operations that the caller may see, 100 at most."""

    operations: list[OperationReport]


def actions_for(desk: Desk, caller: Caller, queue: str, state: str) -> list[str]:
    """Return what the caller may do to many jobs of a queue that are in a state."""
    target = queue_target(queue)
    if queue.startswith("workflow.") or not desk.may(caller, "operation.start", target):
        return []
    return [
        name for name, right in _RIGHTS.items() if state in ACTIONS[name] and desk.may(caller, right, target)
    ]


async def preview_operation(
    desk: Desk, caller: Caller, path: dict[str, str], order: PreviewQuery | OperationOrder
) -> OperationPreview:
    """Count the jobs that an operation would be about."""
    queue = _find_queue(desk, caller, path)
    return await desk.provider.inspector.within(timeouts.MANY).operations.preview(
        order.action, queue, **await _filter_of(desk, caller, queue, order)
    )


async def begin_operation(
    desk: Desk, caller: Caller, path: dict[str, str], order: OperationOrder
) -> ActionResult:
    """Begin a bulk operation, if as many jobs are meant as whoever asks was shown."""
    queue = _find_queue(desk, caller, path)
    if order.dry_run:
        found = await preview_operation(desk, caller, path, order)
        return ActionResult(changed=False, note=_jobs(found.count), value=msgspec.to_builtins(found))
    if not desk.may(caller, "operation.start", queue_target(queue)):
        return await desk.act(caller, "operation.start", queue_target(queue), _nothing, reason=order.reason)

    async def begin() -> ActionResult:
        known = await _find_known(desk, caller, order.id)
        if known is not None and _is_of_group(
            known, order, queue
        ):  # which may be gone, so it is not looked for
            return ActionResult(changed=False, note="it was begun before", operation=known.id)
        meant = await _filter_of(desk, caller, queue, order)
        asked = desk.provider.inspector
        begun = await asked.within(timeouts.MANY).operations.begin(
            order.action,
            queue,
            **meant,
            expected=None if order.force else order.expected,
            by=caller.actor.name,
            reason=order.reason,
            operation_id=order.id,
        )
        desk.work(asked.operations.run)
        if known is not None:
            return ActionResult(changed=False, note="it was begun before", operation=begun.id)
        count = "more jobs than are counted" if begun.total is None else _jobs(begun.total)
        return ActionResult(changed=True, note=count, operation=begun.id)

    right, target = _RIGHTS[order.action], queue_target(queue)
    done = await desk.act(caller, right, target, begin, reason=order.reason)
    _forget(desk)
    return done


async def clean_queue(desk: Desk, caller: Caller, path: dict[str, str], order: CleanOrder) -> ActionResult:
    """Begin to remove jobs of the queue."""
    fields = msgspec.structs.asdict(order)
    return await begin_operation(desk, caller, path, OperationOrder(action="remove", **fields))


async def retry_group(
    desk: Desk, caller: Caller, path: dict[str, str], order: RetryGroupOrder
) -> ActionResult:
    """Begin to let all jobs of a group of failures run again."""
    known = await _find_known(desk, caller, order.id)  # its jobs may have left the group
    queue = known.queue if known is not None else (await find_group(desk, caller, path["failure"])).queue
    desk.failures.forget()  # only now: the read is work for the server
    wanted = OperationOrder(
        action="retry", failure=path["failure"], expected=order.expected, reason=order.reason, id=order.id
    )
    return await begin_operation(desk, caller, {"queue": queue}, wanted)


async def read_operations(
    desk: Desk, caller: Caller, _path: dict[str, str], _query: NoQuery
) -> OperationList:
    """Return the newest operations that the caller may see."""
    found = await desk.inspector.operations.list(limit=_LISTED)
    return OperationList(operations=[_shown(each) for each in found if _is_seen(desk, caller, each)])


async def read_operation(desk: Desk, caller: Caller, path: dict[str, str], _query: NoQuery) -> OperationView:
    """Return how far one operation is."""
    found = await _find(desk, caller, path["operation"])
    may = desk.abilities(caller, queue_target(found.queue), "operation.stop")
    return OperationView(operation=_shown(found), may=may)


async def stop_operation(
    desk: Desk, caller: Caller, operation: OperationReport, _order: BareOrder
) -> ActionResult:
    """Let an operation do no more."""
    done = await desk.inspector.operations.stop(operation.id, caller.actor.name)
    note = f"operation {operation.id} {'does no more' if done else 'had ended before'}"
    return ActionResult(changed=done and operation.state == "running", note=note)


async def _find_target(desk: Desk, caller: Caller, operation: str) -> tuple[OperationReport, Target]:
    found = await _find(desk, caller, operation)
    return found, queue_target(found.queue)


def _forget(desk: Desk) -> None:
    desk.queues.forget()
    desk.failures.forget()


OPERATION: Subject[OperationReport] = Subject("/operations/{operation}", _find_target, forget=_forget)


async def _find_known(desk: Desk, caller: Caller, operation: str | None) -> OperationReport | None:
    """Return the operation that an id has begun, None for none that the caller may see."""
    try:
        return None if operation is None else await _find(desk, caller, operation)
    except Problem:
        return None


async def _find(desk: Desk, caller: Caller, operation: str) -> OperationReport:
    missing = Problem(404, f"there is no operation {operation[:64]!r}")
    try:
        found = await desk.inspector.operations.get(operation)
    except UsageError:
        raise missing from None
    if not _is_seen(desk, caller, found):
        raise missing
    return found


def _find_queue(desk: Desk, caller: Caller, path: dict[str, str]) -> str:
    queue = find_queue(desk, caller, path["queue"])
    desk.demand_sight(caller, queue_target(queue), f"queue {queue!r}", jobs=True)
    return queue


def _is_seen(desk: Desk, caller: Caller, found: OperationReport) -> bool:
    return desk.sees(caller, queue_target(found.queue), jobs=True)


def _shown(found: OperationReport) -> OperationReport:
    """Return it with the type of its error alone, because the text may repeat what is hidden."""
    return msgspec.structs.replace(found, error=found.error.partition(":")[0])


async def _filter_of(
    desk: Desk, caller: Caller, queue: str, order: PreviewQuery | OperationOrder
) -> dict[str, Any]:
    """Return which jobs are meant, in the words of the inspector."""
    jobs = order.jobs.split() if isinstance(order.jobs, str) else order.jobs
    meant: dict[str, Any] = {"state": order.state, "older_than": order.older_than, "jobs": jobs}
    if order.failure is not None:
        group = await find_group(desk, caller, order.failure)
        if group.queue != queue:
            raise Problem(422, f"this group of failures is none of {queue}")
        is_type_alone = desk.redaction(caller, queue_target(queue)).hides_errors
        # With a colon it is the group without a message, and otherwise the type with any.
        error = group.error if ":" in group.error or is_type_alone else f"{group.error}:"
        meant |= {"error": error, "state": "failed"}
    return meant


def _is_of_group(known: OperationReport, order: OperationOrder, queue: str) -> bool:
    is_same = (known.action, known.queue, known.job_state) == (order.action, queue, "failed")
    return order.failure is not None and is_same


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


async def _nothing() -> ActionResult:
    """Stand for a change that is refused before it begins."""
    return ActionResult(changed=False)


READS = (
    Read("/operations", "The newest bulk operations.", OperationList, read_operations),
    Read("/operations/{operation}", "How far one bulk operation is.", OperationView, read_operation),
)


ACTS = (
    Act(
        "POST",
        "/failures/{failure}/retry",
        "/failures/{failure}/retry",
        "Begin to let all jobs of a group run again.",
        RetryGroupOrder,
        retry_group,
    ),
    Act(
        "POST",
        "/queues/{queue}/operations",
        "/queues/{queue}/operations",
        "Begin to retry, cancel or promote many jobs of a queue.",
        OperationOrder,
        begin_operation,
    ),
    Act(
        "POST",
        "/queues/{queue}/clean",
        "/queues/{queue}/clean",
        "Begin to remove many jobs of a queue.",
        CleanOrder,
        clean_queue,
        is_final=True,
    ),
    OPERATION.row("stop", "Let a bulk operation do no more.", "operation.stop", BareOrder, stop_operation),
)
