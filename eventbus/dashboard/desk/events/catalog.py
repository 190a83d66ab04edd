"""The catalog: the events that workers announce or that this program defines, their groups, and their
schemas.

The groups come from the server. The schemas come from the provider that this dashboard was given: workers
announce no schema, because it would be sent with each of their announcements; so a dashboard beside the
program shows events without one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.events.schemas import schema_of
from eventbus.dashboard.desk.queue_views import QueueView
from eventbus.dashboard.desk.queues import queue_target
from eventbus.dashboard.desk.rows import NoQuery, Read
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action
from eventbus.dashboard.problem import Problem
from eventbus.model.names import EVENT_QUEUES, queue_name, split_group

_ACTIONS: tuple[Action, ...] = ("event.emit",)


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """One group of an event, `default` the one without a name: its queue, and who serves it."""

    group: str
    queue: str
    workers: int = 0
    waiting: int = 0
    failed: int = 0
    is_paused: bool = False


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `is_defined` says whether the program of this dashboard has its definition; else there are
    no schemas.
    """

    name: str
    groups: list[GroupView]
    is_defined: bool
    payload_schema: dict[str, Any] | None = None
    result_schema: dict[str, Any] | None = None
    may: list[str] = []


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    """The events, by their names."""

    events: list[EventView]


async def read_events(desk: Desk, caller: Caller, _path: dict[str, str], _query: NoQuery) -> EventList:
    """Return all events of which the caller may see a queue, without their schemas."""
    found = await _find_events(desk, caller)
    return EventList(events=[_view(desk, caller, name, groups, is_whole=False) for name, groups in found])


async def read_event(desk: Desk, caller: Caller, path: dict[str, str], _query: NoQuery) -> EventView:
    """Return one event. Raises Problem, 404, also for one that the caller may not see."""
    wanted = path["event"]
    for name, groups in await _find_events(desk, caller):
        if name == wanted:
            return _view(desk, caller, name, groups, is_whole=True)
    raise Problem(
        404, f"there is no event {wanted!r}: no worker serves it, and this program does not define it"
    )


async def _find_events(desk: Desk, caller: Caller) -> list[tuple[str, list[GroupView]]]:
    found: dict[str, list[GroupView]] = {}
    known = await desk.queues.read()
    for view in known.queues:
        if view.queue.startswith(EVENT_QUEUES) and desk.sees(caller, queue_target(view.queue)):
            base, group = split_group(view.queue)
            found.setdefault(base.removeprefix(EVENT_QUEUES), []).append(_group(view, group))
    for event in desk.provider.inspector.events.list():
        if event.name not in found and desk.sees(caller, queue_target(queue_name(event.name))):
            found[event.name] = []
    return sorted(found.items())


def _group(view: QueueView, group: str) -> GroupView:
    return GroupView(
        group=group or "default",
        queue=view.queue,
        workers=view.workers,
        waiting=view.counts["waiting"],
        failed=view.counts["failed"],
        is_paused=bool(view.paused_ms),
    )


def _view(desk: Desk, caller: Caller, name: str, groups: list[GroupView], *, is_whole: bool) -> EventView:
    event = desk.provider.inspector.events.get(name)
    return EventView(
        name=name,
        groups=groups,
        is_defined=event is not None,
        payload_schema=schema_of(event.payload) if event is not None and is_whole else None,
        result_schema=schema_of(event.result) if event is not None and is_whole else None,
        may=desk.abilities(caller, queue_target(queue_name(name)), *_ACTIONS),
    )


READS = (
    Read("/events", "The events and their groups.", EventList, read_events),
    Read("/events/{event}", "One event, and the schemas of its payload and result.", EventView, read_event),
)
