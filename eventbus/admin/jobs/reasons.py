"""Why a job is in its state: what it waits for, in one word, one sentence, and the facts of it.

It is read from two answers of the server, one about the job and one about its queue. A change between them may make the
reason a moment old; it never makes one up. Of several reasons the first one counts that somebody must do something
about: a pause, then that no worker serves the queue, then a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias
from urllib.parse import unquote

import msgspec

from eventbus.admin.controls import QueueControls
from eventbus.store.control_store import Hindrance

__all__ = ["ReasonKind", "StateReason", "explain", "explain_orphan"]

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

_SUSPECT = 3
"""A job that is blamed for so many stalls waits with the suspects (`docs/how-the-engine-works.md`)."""


class StateReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is in its state. Times are Unix times in ms, 0 where there is none.

    `text` is one sentence for people. `since_ms` is when the reason began, `until_ms` when it ends by itself. `by` is the
    worker that runs the job, or whoever paused the queue. `key` is the limit key that holds the job back, of a long one its
    digest; empty where it is not a key that does.
    """

    kind: ReasonKind
    text: str
    since_ms: int = 0
    until_ms: int = 0
    by: str = ""
    key: str = ""


def explain(
    fields: Mapping[str, str],
    worker: str,
    queue: QueueControls | None,
    hindrance: Hindrance | None = None,
) -> StateReason:
    """Return the reason for the state in a job's record. `worker` is who holds it.

    `queue` is what is known of the queue of a waiting job, and None for a job in another state. `hindrance` is what the limit
    of that queue says, if it has one.
    """
    state, text = fields.get("state", ""), ""
    if state in ("completed", "failed", "cancelled"):
        return StateReason(kind="ended", text=f"It has ended as {state}.", since_ms=_number(fields, "ended"))
    if state == "active":
        since = _number(fields, "claimed")
        text = f"Worker {worker} has run it since {_time(since)}."
        return StateReason(kind="running", text=text, since_ms=since, by=worker)
    if state == "delayed":
        return _explain_delay(fields)
    if state == "waiting-children":
        what = "a signal" if "listens" in fields else "the jobs that it needs"
        ends = _number(fields, "wakes")
        text = f"It waits for {what}" + (f", until {_time(ends)} at most." if ends else ".")
        return StateReason(kind="asleep" if "listens" in fields else "children", text=text, until_ms=ends)
    if state == "parked":
        why = fields.get("why", "") or "no worker can run it"
        return StateReason(
            kind="parked",
            text=f"No worker can run it: {why}. A worker that can takes it back when it starts.",
        )
    if state == "waiting" and queue is not None:
        return _explain_wait(fields, queue, hindrance)
    return StateReason(
        kind="unknown", text=f"Its record has a state that this version does not know: {state!r}."
    )


def explain_orphan(fields: Mapping[str, str], worker: str, lease_end: int) -> StateReason:
    """Return the reason of a job whose worker has not renewed its lease, which has ended."""
    since = _number(fields, "claimed")
    text = (
        f"Worker {worker} has run it since {_time(since)}, but has renewed no lease, which ended at {_time(lease_end)}. "
        "The worker may be dead. Any live worker of the server gives the job back within half a lease."
    )
    return StateReason(kind="orphaned", text=text, since_ms=lease_end, by=worker)


def _explain_delay(fields: Mapping[str, str]) -> StateReason:
    due = _number(fields, "due")
    if before := fields.get("after", ""):
        return StateReason(kind="job-before", text=f"It begins once job {before} of its key has ended.")
    if "listens" in fields:
        return StateReason(
            kind="asleep", text=f"It waits for a signal, until {_time(due)} at most.", until_ms=due
        )
    if attempts := _number(fields, "attempts"):
        times = "once" if attempts == 1 else f"{attempts} times"
        text = f"It has failed {times}. Its next attempt is due at {_time(due)}."
        return StateReason(kind="retry", text=text, until_ms=due)
    return StateReason(kind="delayed", text=f"It is due at {_time(due)}.", until_ms=due)


def _explain_wait(
    fields: Mapping[str, str], queue: QueueControls, hindrance: Hindrance | None
) -> StateReason:
    name = queue.queue
    if queue.is_paused:
        by, why = (
            f" by {queue.paused_by}" if queue.paused_by else "",
            f": {queue.reason}" if queue.reason else "",
        )
        text = f"{name} is paused{by} since {_time(queue.paused_ms)}{why}."
        return StateReason(kind="paused", text=text, since_ms=queue.paused_ms, by=queue.paused_by)
    if not queue.workers:
        return StateReason(kind="unserved", text=f"No worker serves {name}.")
    if _number(fields, "stalls") - _number(fields, "spared") >= _SUSPECT:
        text = "Its workers died three times or more, so it waits until a worker can run it with few others, or alone."
        return StateReason(kind="suspect", text=text)
    limit = queue.limit
    if limit is not None and limit.at_once and queue.running >= limit.at_once:
        text = f"The limit of {name} is {limit.at_once} at once, and {queue.running} run."
        return StateReason(kind="limit", text=text)
    if hindrance is not None and (reason := _explain_limit(fields.get("limit", ""), queue, hindrance)):
        return reason
    if limit is not None and (limit.rate or limit.each or limit.each_rate):
        text = f"It waits in {name}, whose limit may let it start later."
        return StateReason(kind="limit", text=text)
    jobs = "1 job waits" if queue.waiting == 1 else f"{queue.waiting} jobs wait"
    workers = "1 worker serves it" if queue.workers == 1 else f"{queue.workers} workers serve it"
    return StateReason(kind="in-line", text=f"{jobs} in {name}, and {workers}. It is claimed in its turn.")


def _explain_limit(lane: str, queue: QueueControls, hindrance: Hindrance) -> StateReason | None:
    """Return what the limit says for certain: that the rate of the queue is used up, or that the job's limit key rests."""
    key = lane if lane.startswith("#") else unquote(lane)
    if hindrance.rests and hindrance.key_opens:
        text = f"Limit key {key!r} of {queue.queue} may start its next job at {_time(hindrance.key_opens)}."
        return StateReason(kind="limit", text=text, until_ms=hindrance.key_opens, key=key)
    if hindrance.rests:
        most = queue.limit.each if queue.limit else None
        count = f", which is {most} at once" if most else ""
        text = f"Limit key {key!r} of {queue.queue} runs as many jobs as it may{count}."
        return StateReason(kind="limit", text=text, key=key)
    if hindrance.queue_opens:
        text = f"The rate of {queue.queue} lets its next job start at {_time(hindrance.queue_opens)}."
        return StateReason(kind="limit", text=text, until_ms=hindrance.queue_opens)
    return None


def _number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isdecimal() else 0


def _time(unix_ms: int) -> str:
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a damaged record
        return f"{unix_ms} ms"
