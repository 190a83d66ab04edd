"""Views of queues: what is in them, who serves them, what is ordered for them.

The list of all queues is read once for all viewers, at most each two seconds.
"""

from __future__ import annotations

import asyncio

import msgspec

from eventbus.admin.controls import QueueControls
from eventbus.admin.queues import QueueReport
from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.cached_read import CachedRead
from eventbus.model import clock
from eventbus.model.limit import Limit
from eventbus.model.names import EVENT_QUEUES
from eventbus.provider import EventProvider

_STEPS = ".steps"
"""What the queues of a workflow's steps have after its name."""

_STATES = ("waiting", "active", "delayed", "parked", "completed", "failed", "cancelled")


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that holds. `is_set`: it was set at run time, and not declared by a program."""

    at_once: int | None = None
    rate: list[str] = []
    each: int | None = None
    each_rate: list[str] = []
    is_set: bool = False


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue. `counts` are the jobs in each state; `may` are the actions that the caller may use.

    `oldest` is for how many seconds the oldest waiting job has been there, None if none waits. `running` is
    how many jobs the limit counts, None in a list, as is the count of `waiting-children`.
    `completed_per_minute` and `failed_per_minute` are those of the last 4 to 5 minutes. `unreadable` says
    what of the orders for it is damaged in the server, and `silent` what is known of each worker that serves
    it and does not answer.
    """

    queue: str
    event: str
    counts: dict[str, int]
    oldest: float | None
    workers: int
    running: int | None
    paused_ms: int
    paused_by: str
    reason: str
    limit: LimitView | None
    completed_per_minute: float
    failed_per_minute: float
    unreadable: str = ""
    silent: list[str] = []
    may: list[str] = []


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """The queues that are known here. `at_ms` is when they were read."""

    queues: list[QueueView]
    at_ms: int


def share_queues(provider: EventProvider) -> CachedRead[QueueList]:
    """Return what all viewers share."""

    async def read() -> QueueList:
        reports = await provider.inspector.within(timeouts.MANY).queues.list()
        return QueueList(queues=[_view(report) for report in reports], at_ms=round(clock.now() * 1000))

    return CachedRead(read)


def event_of_queue(queue: str) -> str:
    """Return the name under which rights know a queue: its event, `name@group`, or `workflow.<name>` for all
    of a workflow.
    """
    if queue.startswith(EVENT_QUEUES):
        return queue.removeprefix(EVENT_QUEUES)
    name, between, _ = f"{queue}/".rpartition(f"{_STEPS}/")
    return name if between else queue


async def look_at_queue(provider: EventProvider, queue: str) -> QueueView:
    """Return one queue as the server has it now."""
    inspector = provider.inspector.within(timeouts.READ)
    (report,), children, controls = await asyncio.gather(
        inspector.queues.list(queue),
        inspector.queues.count(queue, states=("waiting-children",)),
        controls_of(provider, queue),
    )
    limit = _view_limit(controls.limit, is_set=controls.is_set)
    view = _view(report)
    counts = {**view.counts, "waiting-children": children["waiting-children"]}
    return msgspec.structs.replace(view, counts=counts, running=controls.running, limit=limit)


async def controls_of(provider: EventProvider, queue: str) -> QueueControls:
    """Return what is ordered for a queue."""
    (found,) = await provider.inspector.within(timeouts.READ).queues.controls(queue)
    return found


def _view(report: QueueReport) -> QueueView:
    paused = report.paused
    return QueueView(
        queue=report.name,
        event=event_of_queue(report.name),
        counts={state: getattr(report, state) for state in _STATES},
        oldest=report.oldest,
        workers=report.workers,
        running=None,
        paused_ms=paused.since_ms if paused else 0,
        paused_by=paused.by if paused else "",
        reason=paused.reason if paused else "",
        limit=_view_limit(report.limit, is_set=False),
        completed_per_minute=report.completed_per_minute,
        failed_per_minute=report.failed_per_minute,
        unreadable=report.unreadable,
        silent=[each.text for each in report.silent],
    )


def _view_limit(limit: Limit | None, *, is_set: bool) -> LimitView | None:
    if limit is None:
        return None
    return LimitView(
        at_once=limit.at_once,
        rate=list(limit.rate),
        each=limit.each,
        each_rate=list(limit.each_rate),
        is_set=is_set,
    )
