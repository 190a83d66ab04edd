"""Schedules: when each fires, and the actions on it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from eventbus.dashboard.desk.desk import ActionResult, Desk, Reason
from eventbus.dashboard.desk.queue_views import event_of_queue
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.problem import Problem
from eventbus.errors import DefinitionError, UsageError
from eventbus.schedules.options import ScheduleReport

__all__ = [
    "PauseScheduleOrder",
    "ScheduleList",
    "ScheduleOrder",
    "ScheduleView",
    "SchedulesQuery",
    "pause_schedule",
    "read_schedule",
    "read_schedules",
    "remove_schedule",
    "resume_schedule",
    "run_schedule",
]

_ACTIONS: tuple[Action, ...] = ("schedule.edit", "schedule.run")
_FOLLOWING = 5
_DIGITS = 16
_LAST = 10**_DIGITS - 1


class SchedulesQuery(msgspec.Struct, frozen=True):
    """How many schedules are listed; `cursor` is that of the page before."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    cursor: str = ""


class ScheduleList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the schedules, the next one first. `cursor` asks for the next page, None on the last one.

    A schedule that fires meanwhile comes again behind; none is missed.
    """

    schedules: list[ScheduleReport]
    cursor: str | None = None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule, its next slots as ISO 8601 in its time zone, and the actions that the caller may use.

    `note` says why its slots are not known here.
    """

    schedule: ScheduleReport
    following: list[str] = []
    note: str = ""
    may: list[str] = []


class PauseScheduleOrder(msgspec.Struct, frozen=True):
    """Why it is paused."""

    reason: Reason = ""


class ScheduleOrder(msgspec.Struct, frozen=True):
    """Nothing more is said."""

    reason: Reason = ""


async def read_schedules(
    desk: Desk, caller: Caller, _path: dict[str, str], query: SchedulesQuery
) -> ScheduleList:
    """Return a page of the schedules that the caller may see."""
    listed = await desk.provider.schedules.list()
    found = sorted((each for each in listed if desk.sees(caller, _target(each))), key=_place)
    after = _read_cursor(query.cursor)
    rest = [each for each in found if _place(each) > after]
    shown = rest[: query.limit]
    cursor = "{}:{}".format(*_place(shown[-1])) if len(rest) > len(shown) else None
    return ScheduleList(schedules=shown, cursor=cursor)


async def read_schedule(desk: Desk, caller: Caller, path: dict[str, str], _query: Any) -> ScheduleView:
    """Return one schedule."""
    report, target = await _find(desk, caller, path["schedule"])
    slots, note = [], ""
    if not report.unreadable:
        try:
            slots = await desk.provider.schedules.get(report.id).next(_FOLLOWING)
        except DefinitionError as error:  # such as a time zone that only other machines know
            note = f"its next slots are not known here: {error}"
    return ScheduleView(
        schedule=report,
        following=[
            slot.isoformat(timespec="milliseconds" if slot.microsecond else "seconds") for slot in slots
        ],
        note=note,
        may=desk.abilities(caller, target, *_ACTIONS),
    )


async def pause_schedule(
    desk: Desk, caller: Caller, path: dict[str, str], order: PauseScheduleOrder
) -> ActionResult:
    """Let a schedule fire no more until it is resumed."""
    report, target = await _find(desk, caller, path["schedule"])

    async def pause() -> ActionResult:
        reason = order.reason or f"paused by {caller.actor.name}"
        await desk.provider.schedules.get(report.id).pause(reason)
        return ActionResult(changed=not report.paused, note="it is paused")

    return await desk.act(caller, "schedule.edit", target, pause, reason=order.reason)


async def resume_schedule(
    desk: Desk, caller: Caller, path: dict[str, str], order: ScheduleOrder
) -> ActionResult:
    """Let a schedule fire again."""
    report, target = await _find(desk, caller, path["schedule"])

    async def resume() -> ActionResult:
        await desk.provider.schedules.get(report.id).resume()
        return ActionResult(changed=bool(report.paused), note="it is not paused")

    return await desk.act(caller, "schedule.edit", target, resume, reason=order.reason)


async def run_schedule(
    desk: Desk, caller: Caller, path: dict[str, str], order: ScheduleOrder
) -> ActionResult:
    """Make a job of a schedule now."""
    report, target = await _find(desk, caller, path["schedule"])

    async def run() -> ActionResult:
        job_id = await desk.provider.schedules.get(report.id).run_now()
        return ActionResult(changed=True, note=f"job {job_id} is made", job_id=job_id)

    return await desk.act(caller, "schedule.run", target, run, reason=order.reason)


async def remove_schedule(
    desk: Desk, caller: Caller, path: dict[str, str], order: ScheduleOrder
) -> ActionResult:
    """Remove a schedule. The jobs that it has made stay."""
    report, target = await _find(desk, caller, path["schedule"])

    async def remove() -> ActionResult:
        done = await desk.provider.schedules.remove(report.id)
        return ActionResult(changed=done, note="it is removed")

    return await desk.act(caller, "schedule.edit", target, remove, reason=order.reason)


async def _find(desk: Desk, caller: Caller, schedule: str) -> tuple[ScheduleReport, Target]:
    try:
        report = await desk.provider.schedules.get(schedule).report()
    except DefinitionError:
        raise
    except UsageError:
        raise Problem(404, f"there is no schedule {schedule!r}") from None
    target = _target(report)
    desk.demand_sight(caller, target, f"schedule {schedule!r}")
    return report, target


def _place(report: ScheduleReport) -> tuple[int, str]:
    """Return where a schedule stands in the list; those that have no next slot come last."""
    return report.next or _LAST, report.id


def _read_cursor(cursor: str) -> tuple[int, str]:
    when, between, schedule = cursor.partition(":")
    if cursor and not (between and when.isdecimal() and when.isascii() and len(when) <= _DIGITS):
        raise Problem(422, "expected the cursor of a page of schedules")
    return int(when or -1), schedule


def _target(report: ScheduleReport) -> Target:
    return Target("schedule", report.id, event_of_queue(report.queue))
