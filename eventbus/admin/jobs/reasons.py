"""Why a job is in its state: what it waits for, in one word, one sentence, and the facts of it.

It is read from a bounded number of answers of the server, however many jobs run: about the job, about its
queue, and about who holds its place there. A change between them may make the reason a moment old; it never
makes one up. Of several reasons the first one counts that somebody must do something about: a pause, then
that no worker serves the queue, then a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from eventbus.admin.controls import QueueControls
from eventbus.admin.jobs.job_report import worker_of
from eventbus.store.bounds import PAGE_JOBS
from eventbus.store.calls.control_store import Hindrance
from eventbus.store.calls.queries import Cursor
from eventbus.store.calls.silent_workers import SilentWorker, find_silent
from eventbus.store.readable import number_in
from eventbus.store.store import Store

ReasonKind: TypeAlias = Literal[
    "ended",
    "running",
    "orphaned",
    "delayed",
    "retry",
    "job-before",
    "asleep",
    "children",
    "parked",
    "paused",
    "unserved",
    "limit",
    "suspect",
    "in-line",
    "unknown",
]
"""What a reason is about; the page about operations has a table of them."""

_NAMED = 5
"""At most so many jobs that hold a place are named."""
_LOOKED = 50
"""Of so many jobs that run longest the record is read."""
_SUSPECT = 3
"""A job that is blamed for so many stalls waits with the suspects (`docs/how-the-engine-works.md`)."""


class StateReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is in its state. Times are Unix times in ms, 0 where there is none.

    `text` is one sentence for people. `since_ms` is when the reason began, `until_ms` when it ends by itself.
    `by` is the worker that runs the job, or whoever paused the queue. `key` is the limit key that holds the
    job back, of a long one its digest; empty where it is not a key that does. `holders` are the jobs that
    hold the place for which it waits, the one that has held it longest first, at most five.
    """

    kind: ReasonKind
    text: str
    since_ms: int = 0
    until_ms: int = 0
    by: str = ""
    key: str = ""
    holders: list[str] = []


class Holder(NamedTuple):
    """A job that runs in the place of another one: since when (ms), and on which worker."""

    job: str
    since: int
    worker: str


class WaitFacts(NamedTuple):
    """What is known of the wait of a job. `now` is the server's time in ms."""

    queue: QueueControls | None = None
    """Its queue, None for a job in another state."""
    hindrance: Hindrance | None = None
    """What the limit of that queue says, if it has one."""
    holders: Sequence[Holder] = ()
    """The jobs that hold its place, the one that has held it longest first."""
    silent: Sequence[SilentWorker] = ()
    """The workers of that queue that do not answer any more."""
    now: int = 0


def explain(
    fields: Mapping[str, str],
    worker: str,
    around: WaitFacts = WaitFacts(),  # noqa: B008  (it never changes)
) -> StateReason:
    """Return the reason for the state in a job's record. `worker` is who holds it."""
    state, text = fields.get("state", ""), ""
    if state in ("completed", "failed", "cancelled"):
        return StateReason(
            kind="ended", text=f"It has ended as {state}.", since_ms=number_in(fields, "ended")
        )
    if state == "active":
        since = number_in(fields, "claimed")
        text = f"Worker {worker} has run it since {_time(since)}."
        return StateReason(kind="running", text=text, since_ms=since, by=worker)
    if state == "delayed":
        return _explain_delay(fields, around)
    if state == "waiting-children":
        what = "a signal" if "listens" in fields else "the jobs that it needs"
        ends = number_in(fields, "wakes")
        text = f"It waits for {what}" + (f", until {_time(ends)} at most." if ends else ".")
        return StateReason(kind="asleep" if "listens" in fields else "children", text=text, until_ms=ends)
    if state == "parked":
        why = fields.get("why", "") or "no worker can run it"
        return StateReason(
            kind="parked",
            text=f"No worker can run it: {why}. A worker that can takes it back when it starts.",
        )
    if state == "waiting" and around.queue is not None:
        return _explain_wait(fields, around.queue, around)
    return StateReason(
        kind="unknown", text=f"Its record has a state that this version does not know: {state!r}."
    )


def explain_orphan(fields: Mapping[str, str], worker: str, lease_end: int) -> StateReason:
    """Return the reason of a job whose worker has not renewed its lease, which has ended."""
    since = number_in(fields, "claimed")
    text = (
        f"Worker {worker} has run it since {_time(since)}, but has renewed no lease, which ended at "
        f"{_time(lease_end)}. "
        "The worker may be dead. Any live worker of the server gives the job back within half a lease."
    )
    return StateReason(kind="orphaned", text=text, since_ms=lease_end, by=worker)


def _explain_delay(fields: Mapping[str, str], around: WaitFacts) -> StateReason:
    due = number_in(fields, "due")
    if before := fields.get("after", ""):
        text = f"It begins once job {before} of its key has ended."
        return StateReason(kind="job-before", **_with_holders(text, around))
    if "listens" in fields:
        return StateReason(
            kind="asleep", text=f"It waits for a signal, until {_time(due)} at most.", until_ms=due
        )
    if attempts := number_in(fields, "attempts"):
        times = "once" if attempts == 1 else f"{attempts} times"
        text = f"It has failed {times}. Its next attempt is due at {_time(due)}."
        return StateReason(kind="retry", text=text, until_ms=due)
    return StateReason(kind="delayed", text=f"It is due at {_time(due)}.", until_ms=due)


def _explain_wait(fields: Mapping[str, str], queue: QueueControls, around: WaitFacts) -> StateReason:
    name = queue.queue
    if queue.is_paused:
        by, why = (
            f" by {queue.paused_by}" if queue.paused_by else "",
            f": {queue.reason}" if queue.reason else "",
        )
        text = f"{name} is paused{by} since {_time(queue.paused_ms)}{why}."
        return StateReason(kind="paused", text=text, since_ms=queue.paused_ms, by=queue.paused_by)
    if not queue.workers:
        return _explain_unserved(name, around)
    if number_in(fields, "stalls") - number_in(fields, "spared") >= _SUSPECT:
        text = (
            "Its workers died three times or more, "
            "so it waits until a worker can run it with few others, or alone."
        )
        return StateReason(kind="suspect", text=text)
    limit = queue.limit
    if limit is not None and limit.at_once and queue.running >= limit.at_once:
        text = f"The limit of {name} is {limit.at_once} at once, and {queue.running} run."
        return StateReason(kind="limit", **_with_holders(text, around))
    if around.hindrance is not None and (
        reason := _explain_limit(fields.get("limit", ""), queue, around.hindrance, around)
    ):
        return reason
    if limit is not None and (limit.rate or limit.each or limit.each_rate):
        text = f"It waits in {name}, whose limit may let it start later."
        return StateReason(kind="limit", **_with_holders(text, around))
    jobs = "1 job waits" if queue.waiting == 1 else f"{queue.waiting} jobs wait"
    workers = "1 worker serves it" if queue.workers == 1 else f"{queue.workers} workers serve it"
    found = _with_holders(f"{jobs} in {name}, and {workers}.", around)
    found["text"] += " It is claimed in its turn."
    return StateReason(kind="in-line", **found)


def _explain_unserved(name: str, around: WaitFacts) -> StateReason:
    """Return that nobody serves the queue, and what became of the workers that did."""
    if not around.silent:
        return StateReason(kind="unserved", text=f"No worker serves {name}.")
    first, *others = around.silent
    more = f", and {_count(len(others), 'other')} neither" if others else ""
    text = f"No worker serves {name} now: {first.describe(around.now)}{more}."
    return StateReason(kind="unserved", text=text, since_ms=first.announced, by=first.id)


def _explain_limit(
    lane: str, queue: QueueControls, hindrance: Hindrance, around: WaitFacts
) -> StateReason | None:
    """Return what the limit says for certain: that the rate of the queue is used up, or that the job's limit
    key rests.
    """
    key = lane if lane.startswith("#") else unquote(lane)
    if hindrance.rests and hindrance.key_opens:
        text = f"Limit key {key!r} of {queue.queue} may start its next job at {_time(hindrance.key_opens)}."
        return StateReason(kind="limit", text=text, until_ms=hindrance.key_opens, key=key)
    if hindrance.rests:
        most = queue.limit.each if queue.limit else None
        count = f", which is {most} at once" if most else ""
        text = f"Limit key {key!r} of {queue.queue} runs as many jobs as it may{count}."
        return StateReason(kind="limit", key=key, **_with_holders(text, around))
    if hindrance.queue_opens:
        text = f"The rate of {queue.queue} lets its next job start at {_time(hindrance.queue_opens)}."
        return StateReason(kind="limit", text=text, until_ms=hindrance.queue_opens)
    return None


def _with_holders(text: str, around: WaitFacts) -> dict[str, Any]:
    """Return a reason's text with who holds the place and for how long, and its other fields."""
    if not around.holders:
        return {"text": text}
    first, *others = around.holders
    held = max(0, around.now - first.since) / 1000
    more = f", beside {_count(len(others), 'other')}" if others else ""
    return {
        "text": f"{text} Job {first.job} has held it for {held:.0f} s, on worker {first.worker}{more}.",
        "since_ms": first.since,
        "by": first.worker,
        "holders": [each.job for each in around.holders[:_NAMED]],
    }


async def look_around(store: Store, queue: QueueControls, lane: str, deadline: float) -> WaitFacts:
    """Return what is around a waiting job of this queue. `lane` is its limit key, `''` for none."""
    inspection = store.inspection
    now = await inspection.roster.now(deadline=deadline)
    around = WaitFacts(queue=queue, now=now)
    if not queue.workers:
        silent = find_silent(await inspection.roster.workers(deadline=deadline), now)
        return around._replace(silent=silent.get(queue.queue, ()))
    if queue.limit is not None:
        around = around._replace(
            hindrance=await store.controls.hindrance(queue.queue, lane, deadline=deadline)
        )
    is_key = around.hindrance is not None and around.hindrance.rests
    holders = await _find_holders(store, queue.queue, lane if is_key else None, deadline)
    return around._replace(holders=holders)


async def look_before(store: Store, job: str, deadline: float) -> WaitFacts:
    """Return what is around a job that begins once another one has ended."""
    now = await store.inspection.roster.now(deadline=deadline)
    look = await store.inspection.job(job, deadline=deadline)
    if look.fields.get("state") != "active":
        return WaitFacts(now=now)
    since = int(look.fields.get("claimed") or now)
    return WaitFacts(holders=[Holder(job, since, worker_of(look.fields.get("token", "")))], now=now)


async def _find_holders(store: Store, queue: str, lane: str | None, deadline: float) -> list[Holder]:
    """Return the jobs of a queue that run, the longest first; with a `lane` those of that limit key alone."""
    page = await store.inspection.jobs(queue, "active", cursor=Cursor(), limit=PAGE_JOBS, deadline=deadline)
    holders: list[Holder] = []
    for row in sorted(page.jobs, key=lambda each: each.claimed)[:_LOOKED]:
        fields = (await store.inspection.job(row.id, deadline=deadline)).fields
        if fields.get("state") == "active" and lane in (None, fields.get("limit", "")):
            holders.append(Holder(row.id, row.claimed, worker_of(fields.get("token", ""))))
    return holders


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _time(unix_ms: int) -> str:
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a damaged record
        return f"{unix_ms} ms"
