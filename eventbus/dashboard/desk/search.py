"""Search: a job, a flow, a queue or an event by what somebody typed.

    2f1c0a9be7d4-1      a job, a flow, a queue or an event of this name
    key:order-7         the jobs for which an idempotency key stands
    correlation-id:abc  the jobs of a chain; `correlation:abc` is its old form, for one release
    order_id:7          the jobs of one queue and state by a field of their payload

What must always hold: nothing is found by a value that the caller may not see; a search says how many jobs it
has seen, and what it did not look at. What one may not see is not there.
"""

from __future__ import annotations

import msgspec

from eventbus.admin.jobs.lookups import FoundJob
from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.jobs import find_job
from eventbus.dashboard.desk.queues import find_queue, queue_target
from eventbus.dashboard.desk.rows import Read
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.problem import Problem
from eventbus.errors import UnknownJob
from eventbus.model.names import EVENT_QUEUES
from eventbus.model.states import JobState

_LONGEST = 512
_MOST_NAMES = 50
_KEY_EVENTS = 50


class SearchQuery(msgspec.Struct, frozen=True):
    """What is looked for, and where; `cursor` goes on with a search by a field."""

    q: str = ""
    queue: str = ""
    state: JobState = "waiting"
    cursor: str | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `seen` is how many jobs were looked at, `cursor` goes on behind them; `note` is what
    was not looked at.
    """

    queues: list[str] = []
    jobs: list[FoundJob] = []
    seen: int = 0
    cursor: str | None = None
    note: str = ""


async def search(desk: Desk, caller: Caller, _path: dict[str, str], query: SearchQuery) -> Found:
    """Return what the caller may see of it. Raises Problem, 422, for a query that says nothing."""
    wanted = query.q.strip()
    if not wanted or len(wanted) > _LONGEST or not wanted.isprintable():
        raise Problem(422, f"expected what to look for, printable text of 1 to {_LONGEST} characters")
    kind, between, value = wanted.partition(":")
    if between and value and kind == "key":
        return await _by_key(desk, caller, value, query.queue)
    if between and value and kind in ("correlation-id", "correlation"):
        return await _by_correlation(desk, caller, value, query.queue)
    direct = await _by_name(desk, caller, wanted)
    if direct.jobs or direct.queues or not (between and value):
        return direct
    return await _by_field(desk, caller, wanted, query)


async def _by_name(desk: Desk, caller: Caller, wanted: str) -> Found:
    """Return the job of an id, or the queues whose names hold the text."""
    try:
        report, _ = await find_job(desk, caller, wanted)
    except (UnknownJob, Problem):
        pass
    else:
        job = msgspec.convert(report, FoundJob, from_attributes=True)
        return Found(jobs=[msgspec.structs.replace(job, error="")])
    known = await desk.queues.read()
    names = [
        each.queue
        for each in known.queues
        if wanted.lower() in each.queue.lower() and desk.sees(caller, queue_target(each.queue))
    ]
    note = f"the first {_MOST_NAMES} of {len(names)}" if len(names) > _MOST_NAMES else ""
    return Found(queues=names[:_MOST_NAMES], note=note)


async def _by_key(desk: Desk, caller: Caller, key: str, queue: str) -> Found:
    """Return the jobs of a key: of one event, or of those that are known."""
    if queue:
        events = [find_queue(desk, caller, queue)]
    else:
        known = await desk.queues.read()
        events = [
            each.queue
            for each in known.queues
            if each.queue.startswith(EVENT_QUEUES) and "@" not in each.queue
            if desk.sees(caller, queue_target(each.queue))
        ]
    found: list[FoundJob] = []
    seen = 0
    for event in events[:_KEY_EVENTS]:
        here = await desk.inspector.jobs.find(event, idempotency_key=key)
        found, seen = found + here.jobs, seen + here.seen
    left = len(events) - _KEY_EVENTS
    note = f"{left} events were not looked at; name the queue" if left > 0 else ""
    return Found(jobs=_cleaned(desk, caller, found), seen=seen, note=note)


async def _by_correlation(desk: Desk, caller: Caller, chain: str, queue: str) -> Found:
    given = find_queue(desk, caller, queue) if queue else None
    here = await desk.provider.inspector.within(timeouts.SEARCH).jobs.find(given, correlation_id=chain)
    note = "" if here.is_whole else f"{here.seen} jobs were looked at, and there are more; name the queue"
    return Found(jobs=_cleaned(desk, caller, here.jobs), seen=here.seen, note=note)


async def _by_field(desk: Desk, caller: Caller, wanted: str, query: SearchQuery) -> Found:
    """Return the jobs whose payload, as the caller sees it, has the value."""
    if not query.queue:
        raise Problem(422, f"{wanted} is looked for in the payloads of one queue and state; name the queue")
    queue = find_queue(desk, caller, query.queue)
    target = queue_target(queue)
    desk.demand_sight(caller, target, f"queue {queue!r}", jobs=True)
    if not desk.may(caller, "payload.read", target):
        raise Problem(403, "to look for a payload needs payload.read")
    redaction = desk.redaction(caller, target)
    if redaction.hides_all:
        raise Problem(403, "every value is hidden, so no job is found by one")
    here = await desk.provider.inspector.within(timeouts.SEARCH).jobs.find_by_field(
        queue, wanted, state=query.state, names=redaction.names, cursor=query.cursor or None
    )
    return Found(jobs=_cleaned(desk, caller, here.jobs), seen=here.seen, cursor=here.cursor)


def _cleaned(desk: Desk, caller: Caller, jobs: list[FoundJob]) -> list[FoundJob]:
    """Return those jobs that the caller may see, without what is hidden in their errors."""
    seen: list[FoundJob] = []
    for job in jobs:
        target = queue_target(job.queue)
        if desk.sees(caller, target, jobs=True):
            error = desk.redaction(caller, target).error(job.error)
            seen.append(msgspec.structs.replace(job, error=error))
    return seen


READS = (Read("/search", "Jobs and queues by a name, a key, or a field.", Found, search, SearchQuery),)
