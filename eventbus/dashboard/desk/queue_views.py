"""Views of queues: what is in them, who serves them, what is ordered for them.

The list of queues is put together from what this provider and the server know: the handlers of the program, the groups, the
queues with orders, those of flows and of schedules. It is read once for all viewers, at most each two seconds.
"""

from __future__ import annotations

import asyncio

import msgspec

from eventbus.admin.controls import QueueControls
from eventbus.dashboard.desk.snapshot import Snapshot
from eventbus.model import clock
from eventbus.model.limit import Limit
from eventbus.model.names import EVENT_QUEUES, queue_name
from eventbus.provider import EventProvider

__all__ = [
    "READ_SECONDS",
    "LimitView",
    "QueueList",
    "QueueView",
    "controls_of",
    "event_of_queue",
    "look_at_queue",
    "share_queues",
]

READ_SECONDS = 2.0
"""How long the server may take for one read; a page must not wait longer."""

_STEPS = ".steps"
"""What the queues of a workflow's steps have after its name."""

_AT_ONCE = 8
"""How many queues are asked for side by side."""


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that holds. `is_set`: it was set at run time, and not declared by a program."""

    at_once: int | None = None
    rate: list[str] = []
    each: int | None = None
    each_rate: list[str] = []
    is_set: bool = False


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue. `counts` are the jobs in each state; `may` are the actions that the caller may use."""

    queue: str
    event: str
    counts: dict[str, int]
    workers: int
    running: int
    paused_ms: int
    paused_by: str
    reason: str
    limit: LimitView | None
    may: list[str] = []


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """The queues that are known here. `at_ms` is when they were read."""

    queues: list[QueueView]
    at_ms: int


def share_queues(provider: EventProvider) -> Snapshot[QueueList]:
    """Return what all viewers share."""

    async def read() -> QueueList:
        names = sorted(await _find_names(provider))
        gate = asyncio.Semaphore(_AT_ONCE)

        async def look(queue: str) -> QueueView:
            async with gate:
                return await look_at_queue(provider, queue)

        return QueueList(queues=await asyncio.gather(*map(look, names)), at_ms=round(clock.now() * 1000))

    return Snapshot(read)


def event_of_queue(queue: str) -> str:
    """Return the name under which rights know a queue: its event, `name@group`, or `workflow.<name>` for all of a workflow."""
    if queue.startswith(EVENT_QUEUES):
        return queue.removeprefix(EVENT_QUEUES)
    name, between, _ = f"{queue}/".rpartition(f"{_STEPS}/")
    return name if between else queue


async def look_at_queue(provider: EventProvider, queue: str) -> QueueView:
    """Return one queue as the server has it now."""
    inspector = provider.inspector
    counts, controls = await asyncio.gather(
        inspector.counts(queue, call_timeout=READ_SECONDS), controls_of(provider, queue)
    )
    return QueueView(
        queue=queue,
        event=event_of_queue(queue),
        counts={str(state): count for state, count in counts.items()},
        workers=controls.workers,
        running=controls.running,
        paused_ms=controls.paused_ms,
        paused_by=controls.paused_by,
        reason=controls.reason,
        limit=_view_limit(controls.limit, is_set=controls.is_set),
    )


async def controls_of(provider: EventProvider, queue: str) -> QueueControls:
    """Return what is ordered for a queue."""
    (found,) = await provider.inspector.controls(queue, call_timeout=READ_SECONDS)
    return found


async def _find_names(provider: EventProvider) -> set[str]:
    inspector = provider.inspector
    ordered, groups, schedules, rooted = await asyncio.gather(
        inspector.controls(call_timeout=READ_SECONDS),
        inspector.groups(call_timeout=READ_SECONDS),
        provider.schedules.list(),
        provider.jobs.root_queues(deadline=clock.monotonic() + READ_SECONDS),
    )
    names = {*provider.queues, *rooted, *(each.queue for each in ordered)}
    for group in groups:
        names |= {queue_name(group.event), queue_name(group.event, group.name)}
    names |= {queue_name(each.event) for each in schedules if each.event and not each.unreadable}
    return names


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
