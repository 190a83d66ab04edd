"""Controls of queues: what an operator orders for a queue, and the report of it.

A queue is paused by a flag that the claims of all workers read anyway (`store/lua/lib/book.lua`). What is
ordered is kept in the server until somebody takes it back: it outlives workers, releases and restarts of the
server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from eventbus.admin.queue_name import queue_of
from eventbus.errors import DefinitionError
from eventbus.lifecycle import Lifecycle
from eventbus.model.durations import Duration
from eventbus.model.event import Event
from eventbus.model.keep import Keep
from eventbus.model.limit import Limit
from eventbus.model.names import shown
from eventbus.settings.settings import Settings
from eventbus.store.bounds import REASON_CHARACTERS
from eventbus.store.calls.control_store import Orders


class QueueControls(msgspec.Struct, frozen=True, kw_only=True):
    """What is ordered for one queue. Times are Unix times in ms, 0 where there is none.

    `workers` is how many workers serve it, and `waiting` how many jobs wait there. `paused_by` and `reason`
    are texts that whoever paused it gave. `limit` is the one that holds: one that was set at run time
    (`is_set`), else the one that a program declares. `running` counts the jobs that it bounds.
    `keep_completed` and `keep_failed` are what the event or workflow of the queue declares; where it is None,
    the settings of the workers decide. `unreadable` says what of this is damaged in the server, and is
    therefore not told.
    """

    queue: str
    workers: int = 0
    waiting: int = 0
    running: int = 0
    paused_ms: int = 0
    paused_by: str = ""
    reason: str = ""
    limit: Limit | None = None
    is_set: bool = False
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    unreadable: str = ""

    @property
    def is_paused(self) -> bool:
        """Whether no job of the queue is claimed."""
        return self.paused_ms > 0


class Controls:
    """Orders controls of queues, and looks at them, for `EventProvider` and the inspector; not for users."""

    def __init__(self, life: Lifecycle, settings: Settings) -> None:
        self._life = life
        self._settings = settings

    async def pause(
        self,
        event_or_queue: Event[Any, Any] | str,
        group: str | None,
        *,
        reason: str,
        by: str | None,
        call_timeout: Duration | None,
    ) -> None:
        """Let nobody claim jobs of a queue; see `EventProvider.pause`."""
        queue, deadline = queue_of(event_or_queue, group), self._settings.deadline(call_timeout)
        author = self._settings.name if by is None else _check_text(by, "by")
        store = self._life.running("pause a queue").store
        await store.controls.pause(queue, by=author, reason=_check_text(reason, "reason"), deadline=deadline)

    async def resume(
        self, event_or_queue: Event[Any, Any] | str, group: str | None, *, call_timeout: Duration | None
    ) -> None:
        """Let jobs of a queue be claimed again; see `EventProvider.resume`."""
        queue, deadline = queue_of(event_or_queue, group), self._settings.deadline(call_timeout)
        await self._life.running("resume a queue").store.controls.resume(queue, deadline=deadline)

    async def set_limit(
        self,
        event_or_queue: Event[Any, Any] | str,
        limit: Limit | None,
        group: str | None,
        *,
        call_timeout: Duration | None,
    ) -> None:
        """Set the limit of a queue, or take it back; see `EventProvider.set_limit`."""
        queue, deadline = queue_of(event_or_queue, group), self._settings.deadline(call_timeout)
        if limit is not None and not isinstance(limit, Limit):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected a Limit, or None to take it back, got: {shown(limit)}")
        if limit is not None:
            _check_keys(event_or_queue, queue, limit)
        wire = "" if limit is None else limit.to_wire()
        await self._life.running("set a limit").store.controls.set_limit(queue, wire, deadline=deadline)

    async def look(self, queues: Sequence[str], deadline: float) -> list[QueueControls]:
        """Return what is ordered for these queues."""
        store = self._life.running("look at queues").store
        orders = await store.controls.look(queues, deadline=deadline)
        looks = await store.presence.survey(queues, deadline=deadline)
        return [_report(each, look.workers) for each, look in zip(orders, looks, strict=True)]


def _report(orders: Orders, workers: int) -> QueueControls:
    fields = orders.fields
    keep_completed, keep_failed = orders.keeps
    return QueueControls(
        queue=orders.queue,
        workers=workers,
        waiting=orders.waiting,
        running=orders.running,
        paused_ms=orders.paused_ms,
        paused_by=fields.get("by", ""),
        reason=fields.get("reason", ""),
        limit=orders.limit,
        is_set="ordered" in fields,
        keep_completed=keep_completed,
        keep_failed=keep_failed,
        unreadable=orders.unreadable,
    )


def _check_keys(event: Event[Any, Any] | str, queue: str, limit: Limit) -> None:
    """Raise DefinitionError for a limit whose part for each key would say nothing of this queue, or that
    bounds nothing.

    Of a mere name nobody knows here whether its jobs have limit keys; flows have none.
    """
    known = event if isinstance(event, Event) else None
    own = known.limit.by if known and known.limit else None
    if limit.by is not None and limit.by is not own:
        whose = (
            f"event {known.name!r}" if known else "the event, which must be given itself and not by its name"
        )
        raise DefinitionError(
            f"expected a limit without by, or with that of {whose}, because emitters use that "
            f"one; got: {shown(limit.by)}"
        )
    if not limit.to_wire():
        raise DefinitionError(
            "the limit has by alone, which bounds nothing; give at_once, rate, each or each_rate too, "
            "or None to take back what was set"
        )
    has_keys = own is not None if known else not queue.startswith("workflow.")
    if (limit.each or limit.each_rate) and not has_keys:
        whose = f"event {known.name!r} has no limit with by" if known else f"{queue} is a queue of flows"
        raise DefinitionError(
            f"the limit has {'each' if limit.each else 'each_rate'}, and {whose}, so its jobs "
            "have no limit keys"
        )


def _check_text(text: str, name: str) -> str:
    is_text = isinstance(text, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    if is_text and len(text) <= REASON_CHARACTERS:
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            return text
    raise DefinitionError(
        f"expected {name} to be text of at most {REASON_CHARACTERS} characters, got: {shown(text)}"
    )
