"""Lists and removes the groups of events besides `default`.

A group exists from its first worker, or from `add_group`, until it is removed. It gets every emission, even
if no worker serves it any more. Then its queue grows up to `max_waiting`, and a full queue refuses the event
for all groups.

A removal is many small calls. What must always hold:
- from the first call on, no emission makes a job for the group;
- a removal that is begun again, by any caller, does the rest, so its caller may die between two calls;
- while live workers serve the group, each of the calls is refused, because the next announcement of a worker
  would create the group again.
"""

from __future__ import annotations

import msgspec

from eventbus.errors import UsageError
from eventbus.handlers.consumer import retention_of
from eventbus.model import chance
from eventbus.model.durations import Duration
from eventbus.model.names import DEFAULT_GROUP, check_group, event_of, group_queue
from eventbus.settings.settings import Settings
from eventbus.store.bounds import HEAVY_ROWS
from eventbus.store.scripting.script_rows import GroupRemoval, QueueLook
from eventbus.store.store import Store
from eventbus.telemetry.failure import describe_cancelled


class GroupReport(msgspec.Struct, frozen=True, kw_only=True):
    """One group of an event. Times are Unix times in ms, 0 where there is none.

    `waiting` and `parked` count the jobs of the group. `oldest_ms` is since when the first or the last
    waiting job has been there, whichever was earlier: that is the oldest job, unless priorities differ. A job
    that was delayed has been there since it was due. `workers` is the number of live workers that serve the
    group. `served_ms` is when one of them last announced itself; 0 if none did within the last minute, or if
    the last one has left.
    """

    event: str
    name: str
    queue: str
    waiting: int = 0
    parked: int = 0
    oldest_ms: int = 0
    workers: int = 0
    served_ms: int = 0


async def list_groups(store: Store, queue: str | None, *, deadline: float) -> list[GroupReport]:
    """Return the groups of an event's queue, or of all queues, sorted by name."""
    queues = [queue] if queue is not None else await store.groups.grouped(deadline=deadline)
    pairs = [
        (name, group)
        for name in sorted(queues)
        for group in sorted(await store.groups.of(name, deadline=deadline))
    ]
    looks = await store.presence.survey(
        [group_queue(name, group) for name, group in pairs], deadline=deadline
    )
    return [_report(*pair, look) for pair, look in zip(pairs, looks, strict=True)]


def _report(queue: str, group: str, look: QueueLook) -> GroupReport:
    return GroupReport(
        event=event_of(queue),
        name=group,
        queue=group_queue(queue, group),
        waiting=look.waiting,
        parked=look.parked,
        oldest_ms=look.oldest,
        workers=look.workers,
        served_ms=look.announced,
    )


async def remove_group(
    store: Store, settings: Settings, queue: str, group: str, *, force: bool, call_timeout: Duration | None
) -> int:
    """Remove a group of an event's queue; see `EventProvider.remove_group`."""
    if check_group(group) == DEFAULT_GROUP:
        raise UsageError("the group 'default' is the event itself and cannot be removed")
    kept = retention_of(settings)
    call, text = chance.token(8), describe_cancelled(f"its group {group!r} was removed")
    last: GroupRemoval | None = None
    count = 0
    while last is None or last.word == "more":
        last = await store.groups.remove(
            queue,
            group,
            force=force,
            limit=HEAVY_ROWS,
            age_completed=kept.age_completed,
            age_failed=kept.age_failed,
            key_ttl_ms=kept.key_ttl,
            call=call,
            text=text,
            deadline=settings.deadline(call_timeout),
        )
        count += last.cancelled
        if last.word == "served":
            raise UsageError(_describe_served(queue, group, last.workers, count))
    return count


def _describe_served(queue: str, group: str, workers: int, count: int) -> str:
    event, who = event_of(queue), "a worker serves" if workers == 1 else f"{workers} workers serve"
    begun = f" ({count} of its jobs were cancelled before)" if count else ""
    return (
        f"cannot remove group {group!r} of {event!r}: {who} it{begun} and would make it again within 5 s; "
        "stop what serves it first, or pass force=True (eventbus groups: --force)"
    )
