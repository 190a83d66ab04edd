"""The overview: every queue with its counts, and every worker, each in a bounded number of calls.

What must hold: a look costs the same however many jobs wait or are kept. It reads counts, and walks only the
jobs that somebody runs. The counts of a report are read in several calls, so a job that moves meanwhile may
be counted twice or not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.admin.queue_name import queue_of
from eventbus.lifecycle import Lifecycle
from eventbus.model.durations import Duration
from eventbus.model.event import Event
from eventbus.model.limit import Limit
from eventbus.model.names import EVENT_QUEUES, event_of, split_group
from eventbus.settings.settings import Settings
from eventbus.store.calls.control_store import Orders
from eventbus.store.calls.roster import EndedCounts, WorkerLook
from eventbus.store.calls.silent_workers import SilentWorker, find_silent
from eventbus.store.readable import number
from eventbus.store.scripting.script_rows import QueueLook
from eventbus.store.store import Store

__all__ = ["Overview", "PauseReport", "QueueReport", "SilentReport", "WorkerReport"]


class PauseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The pause of a queue: since when (Unix time in ms), and by whom and why, as whoever paused it said."""

    since_ms: int
    by: str = ""
    reason: str = ""


class SilentReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of a queue that does not answer any more, and has not left. Times are Unix times in ms.

    `since_ms` is when it last announced itself, which it does each 5 s. `is_blocked` says that its process is
    there, and code blocks its event loop; `lag_ms` is how far the loop was behind when the worker was last
    heard, at `heard_ms`. `text` is what is known of it, as a sentence.
    """

    worker: str
    since_ms: int
    heard_ms: int
    lag_ms: int
    is_blocked: bool
    text: str


class QueueReport(msgspec.Struct, frozen=True, kw_only=True):
    """One queue.

    `name` is the queue, such as `event.order.placed@billing`; `event` and `group` are its parts. `event` is
    empty for a queue that is none of an event's, such as `workflow.checkout`, and `group` is None for the
    default one. `waiting`, `delayed`, `active`, `parked` count open jobs. `completed`, `failed` and
    `cancelled` count those that are kept, but for the ones that go at a time of their own. `oldest` is for
    how many seconds the oldest waiting job has been there since it was emitted, due or retried, None if none
    waits; where priorities differ it may be an old one that is not the oldest. `workers` is how many live
    workers serve the queue. `paused` is None unless it is paused. `limited` says whether a limit holds, which
    is `limit`. `completed_per_minute` and `failed_per_minute` are how many jobs ended so in a minute, over
    the last 4 to 5 minutes; those that expired are among the failed ones. They come from the history of the
    queue, which workers tell each 5 seconds, and are 0 where the setting `history` is off. `unreadable` says
    what of the orders for the queue is damaged in the server, and is therefore not told. `silent` are the
    workers that serve the queue and do not answer: they are none of `workers`.
    """

    name: str
    event: str = ""
    group: str | None = None
    waiting: int = 0
    delayed: int = 0
    active: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    parked: int = 0
    oldest: float | None = None
    workers: int = 0
    paused: PauseReport | None = None
    limited: bool = False
    limit: Limit | None = None
    completed_per_minute: float = 0.0
    failed_per_minute: float = 0.0
    unreadable: str = ""
    silent: list[SilentReport] = []


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. Times are Unix times in ms by the server's clock, 0 where there is none.

    `name` is the name of its provider, `host`, `pid` and `version` are those of its process, as it said
    itself. `queues` are those that it serves, sorted, and `versions` the versions of jobs that it can run, by
    queue, where jobs have any. `running` is how many jobs it holds, `concurrency` how many it may run at a
    time. `lag_ms` is how far its event loop was behind when it was last heard. `started_ms` is when it first
    announced itself, `heard_ms` when the server last heard of it. A worker that lives is heard each 3 s; one
    that was killed stays listed for 10 minutes. Of a worker of an earlier release only `id`, `running`,
    `heard_ms` and `lag_ms` are known.
    """

    id: str
    name: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    started_ms: int = 0
    heard_ms: int = 0
    queues: list[str] = []
    versions: dict[str, list[str]] = {}
    running: int = 0
    concurrency: int = 0
    lag_ms: int = 0


class Overview:
    """The methods of the inspector that look at all queues and all workers."""

    _life: Lifecycle
    _settings: Settings

    async def queues(
        self, event_or_queue: Event[Any, Any] | str | None = None, *, call_timeout: Duration | None = None
    ) -> list[QueueReport]:
        """Return every queue of the server, sorted by name; or one, also where the server does not know it.

        A queue is known from its first job or its first worker on, or from the first order for it. It is
        known until it has had no job, no worker and no order for 7 days. Raises ProviderStopped and
        StoreError.
        """
        deadline = self._settings.deadline(call_timeout)
        store = self._life.running("list queues").store
        if event_or_queue is None:
            names = await store.inspection.roster.queues(deadline=deadline)
        else:
            names = [queue_of(event_or_queue)]
        return await _report_queues(store, names, deadline)

    async def queue_names(self, *, call_timeout: Duration | None = None) -> list[str]:
        """Return the names of all queues that the server knows, sorted; it costs less than `queues`, which
        looks into each.

        Raises ProviderStopped and StoreError.
        """
        store = self._life.running("list queues").store
        return await store.inspection.roster.queues(deadline=self._settings.deadline(call_timeout))

    async def workers(self, *, call_timeout: Duration | None = None) -> list[WorkerReport]:
        """Return every worker that was heard within the last 10 minutes and has not ended; sorted by name and
        id.

        Raises ProviderStopped and StoreError.
        """
        deadline = self._settings.deadline(call_timeout)
        looks = await self._life.running("list workers").store.inspection.roster.workers(deadline=deadline)
        return sorted(map(_report_worker, looks), key=lambda each: (each.name, each.id))


async def _report_queues(store: Store, names: list[str], deadline: float) -> list[QueueReport]:
    roster = store.inspection.roster
    active = await roster.active(deadline=deadline)
    looks = await store.presence.survey(names, deadline=deadline)
    orders = await store.controls.look(names, deadline=deadline)
    ended = await roster.ended(names, deadline=deadline)
    now = await roster.now(deadline=deadline)
    silent = find_silent(await roster.workers(deadline=deadline), now)
    rows = zip(looks, orders, ended, strict=True)
    return [
        _report_queue(look, order, counts, active[order.queue], silent.get(order.queue, []), now)
        for look, order, counts in rows
    ]


def _report_queue(
    look: QueueLook, orders: Orders, ended: EndedCounts, active: int, silent: list[SilentWorker], now: int
) -> QueueReport:
    base, group = split_group(orders.queue)
    fields = orders.fields
    paused = PauseReport(since_ms=orders.paused_ms, by=fields.get("by", ""), reason=fields.get("reason", ""))
    return QueueReport(
        name=orders.queue,
        event=event_of(base) if base.startswith(EVENT_QUEUES) else "",
        group=group or None,
        waiting=look.waiting,
        delayed=look.delayed,
        active=active,
        completed=ended.completed,
        failed=ended.failed,
        cancelled=ended.cancelled,
        parked=look.parked,
        oldest=max(0, now - look.oldest) / 1000 if look.oldest else None,
        workers=look.workers,
        paused=paused if paused.since_ms else None,
        limited=orders.is_limited,
        limit=orders.limit,
        unreadable=orders.unreadable,
        completed_per_minute=ended.completed_per_minute,
        failed_per_minute=ended.failed_per_minute,
        silent=[
            SilentReport(
                worker=each.id,
                since_ms=each.announced,
                heard_ms=each.heard,
                lag_ms=each.lag,
                is_blocked=each.is_blocked,
                text=f"I{each.describe(now)[1:]}.",
            )
            for each in silent
        ],
    )


def _report_worker(look: WorkerLook) -> WorkerReport:
    fields = look.fields
    return WorkerReport(
        id=look.id,
        name=fields.get("name", ""),
        host=fields.get("host", ""),
        pid=_number(fields, "pid"),
        version=fields.get("version", ""),
        started_ms=_number(fields, "started"),
        heard_ms=max(look.announced, _number(fields, "heard")),
        queues=sorted(fields.get("queues", "").split()),
        versions=_read_versions(fields.get("versions", "")),
        running=look.held,
        concurrency=_number(fields, "concurrency"),
        lag_ms=_number(fields, "lag"),
    )


def _read_versions(text: str) -> dict[str, list[str]]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, list[str]])
    except (msgspec.MsgspecError, UnicodeError):
        return {}


def _number(fields: dict[str, str], name: str) -> int:
    return number(fields.get(name))
