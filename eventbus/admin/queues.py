"""Queues: the counts of each, their history, what is ordered for them, and what is done to all jobs of one.

What must hold: a look at all queues costs the same however many jobs wait or are kept. It reads counts, and
walks only the jobs that somebody runs. The counts of a report are read in several calls, so a job that moves
meanwhile may be counted twice or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec

from eventbus.admin.controls import Controls, QueueControls
from eventbus.admin.groups import GroupReport, list_groups
from eventbus.admin.history import Minute, Step, read_length, read_minutes
from eventbus.admin.jobs.failures import FailureGroup, group_failures
from eventbus.admin.jobs.job_cursor import check_state
from eventbus.admin.jobs.retrials import (
    PURGED,
    RETRIED,
    PurgedState,
    RetriedState,
    change_all,
    check_event,
    check_known,
    remove_jobs,
)
from eventbus.admin.namespace import Namespace, OldName
from eventbus.admin.queue_name import queue_of
from eventbus.errors import DefinitionError
from eventbus.model.durations import Duration, milliseconds
from eventbus.model.event import Event
from eventbus.model.limit import Limit
from eventbus.model.names import EVENT_QUEUES, event_of, shown, split_group
from eventbus.model.states import JobState
from eventbus.store.calls.control_store import Orders
from eventbus.store.calls.roster import EndedCounts
from eventbus.store.calls.silent_workers import SilentWorker, find_silent
from eventbus.store.scripting.script_rows import QueueLook
from eventbus.store.store import Store


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


class Queues(Namespace):
    """Queues, and what concerns all jobs of one: how many there are, what failed, what is ordered for it.

    `event_or_queue` is an event, its name, `name@group`, or a queue such as `workflow.checkout.steps`.
    """

    async def names(self) -> list[str]:
        """Return the names of all queues that the server knows, sorted; it costs less than `list`, which
        looks into each.

        Raises ProviderStopped and StoreError.
        """
        store = self._store("list queues")
        return await store.inspection.roster.queues(deadline=self._deadline())

    async def count(
        self, event_or_queue: Event[Any, Any] | str, *, states: Sequence[JobState] = get_args(JobState)
    ) -> dict[str, int]:
        """Return how many jobs an event, or a queue, has in each state. Counts the jobs that `jobs.list`
        lists.
        """
        queue = queue_of(event_or_queue)
        store, deadline = self._begin("count jobs")
        return {
            state: await store.inspection.count(queue, check_state(state), deadline=deadline)
            for state in states
        }

    async def history(
        self,
        event_or_queue: Event[Any, Any] | str,
        group: str | None = None,
        *,
        last: Duration = "1 hour",
        step: Step | None = None,
    ) -> list[Minute]:
        """Return what became of the jobs of a queue, for each minute or hour of the `last` time, oldest
        first.

        `event_or_queue` and `group` are as for `pause`. `last` is in seconds, a timedelta or text; the time
        that runs now is the last of the list, and is not over. `step` is "1m" or "1h"; without it that is
        "1m" for 6 hours and less. A time in which nothing was counted is there with 0. Workers keep it as
        their setting `history` says: 48 hours by minute and 90 days by hour. Raises DefinitionError for a
        `last` that is not above 0, or above 7 days by minute or 366 days.
        """
        queue = queue_of(event_or_queue, group)
        step, count = read_length(last, step)
        store, deadline = self._begin("look at the history of a queue")
        return await read_minutes(store, queue, step, count, deadline=deadline)

    async def controls(self, event_or_queue: Event[Any, Any] | str | None = None) -> list[QueueControls]:
        """Return the queues for which anything is ordered, or what is ordered for one queue.

        That is a pause, a limit, and a time for which finished jobs are kept that the event or workflow
        declares.

        For one queue, `event_or_queue` is its event, the event's name, `name@group`, or the queue.
        """
        store, deadline = self._begin("list what is ordered for queues")
        if event_or_queue is None:
            queues = sorted(await store.controls.limited(deadline=deadline))
        else:
            queues = [queue_of(event_or_queue)]
        return await Controls(self._life, self._settings).look(queues, deadline)

    async def groups(self, event: Event[Any, Any] | str | None = None) -> list[GroupReport]:
        """Return the groups of an event besides `default`, or those of all events."""
        queue = None if event is None else split_group(queue_of(event))[0]
        store, deadline = self._begin("list groups")
        return await list_groups(store, queue, deadline=deadline)

    async def failures(self, event_or_queue: Event[Any, Any] | str | None = None) -> list[FailureGroup]:
        """Return the failed jobs of an event with its groups, of one queue, or of all queues, by their error.

        The largest group is first. Of each queue the newest 10,000 are read, which is what `keep_failed`
        keeps by default. Flows that failed are in it, by the queue of their workflow. Raises ProviderStopped
        and StoreError.
        """
        store, deadline = self._begin("list failures")
        names = await store.inspection.roster.queues(deadline=deadline)
        if event_or_queue is not None:
            queue = queue_of(event_or_queue)
            names = sorted({queue, *(name for name in names if split_group(name)[0] == queue)})
        ended = await store.inspection.roster.ended(names, deadline=deadline)
        groups: list[FailureGroup] = []
        for name, counts in zip(names, ended, strict=True):
            if counts.failed:
                groups += await group_failures(store, name, deadline)
        return sorted(groups, key=lambda each: (-each.count, each.queue, each.error))

    async def retry_all(
        self,
        event_or_queue: Event[Any, Any] | str,
        state: RetriedState = "failed",
        error: str | None = None,
        *,
        dry_run: bool = False,
    ) -> int:
        """Let all jobs of an event in one state wait again; return how many. With `dry_run` only count them.

        `error` takes only those whose error it is: the text of a `FailureGroup`, or the type alone, such as
        `ValueError`. Jobs that fail while this goes on are not retried again. Those that cannot be retried
        stay and are not counted; see `jobs.retry`. If this is cut off, call it again: it does the rest.
        The time of `within` counts for each of its calls to the server, which have 100 jobs at most.
        `max_waiting` does not hold here.
        """
        queue = check_event(queue_of(event_or_queue), "retried")
        check_known(state, RETRIED)
        store = self._store("retry jobs")

        async def retry(ids: Sequence[str]) -> int:
            words = await store.controls.retrials.retry(ids, states=[state], deadline=self._deadline())
            return words.count("retried")

        return await change_all(
            store, queue, state, error, change=None if dry_run else retry, deadline=self._deadline
        )

    async def purge(
        self,
        event_or_queue: Event[Any, Any] | str,
        state: PurgedState = "failed",
        error: str | None = None,
        *,
        older_than: Duration | None = None,
        dry_run: bool = False,
    ) -> int:
        """Remove all jobs of an event in one state, as `jobs.remove` does; return how many.

        With `dry_run` only count them.

        `error` is as in `retry_all`. `older_than` (seconds, a timedelta or text) spares the jobs that ended,
        or for open ones were emitted, more lately. If this is cut off, call it again: it does the rest.
        The time of `within` counts for each of its calls to the server, which have 100 jobs at most.
        """
        queue = check_event(queue_of(event_or_queue), "removed")
        check_known(state, PURGED)
        if error is not None and state not in RETRIED:
            raise DefinitionError(f"expected error with state failed or cancelled, got state: {shown(state)}")
        age = 0 if older_than is None else milliseconds(older_than, setting="older_than")
        store = self._store("purge jobs")

        async def remove(ids: Sequence[str]) -> int:
            words = await remove_jobs(store, self._settings, ids, [state], deadline=self._deadline())
            return words.count("removed")

        return await change_all(
            store, queue, state, error, age=age, change=None if dry_run else remove, deadline=self._deadline
        )

    async def list(self, event_or_queue: Event[Any, Any] | str | None = None) -> list[QueueReport]:
        """Return every queue of the server, sorted by name; or one, also where the server does not know it.

        A queue is known from its first job or its first worker on, or from the first order for it. It is
        known until it has had no job, no worker and no order for 7 days. Raises ProviderStopped and
        StoreError.
        """
        store, deadline = self._begin("list queues")
        if event_or_queue is None:
            names = await store.inspection.roster.queues(deadline=deadline)
        else:
            names = [queue_of(event_or_queue)]
        return await _report_queues(store, names, deadline)

    __call__: Final = OldName(list)  # noqa: A003  (the method)


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
