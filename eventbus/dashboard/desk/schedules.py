"""Schedules: when each fires, and the actions on it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from eventbus.dashboard.desk.desk import ActionResult, Desk
from eventbus.dashboard.desk.queue_views import event_of_queue
from eventbus.dashboard.desk.rows import BareOrder, Read, Subject
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.problem import Problem
from eventbus.errors import DefinitionError, UsageError
from eventbus.schedules.options import ScheduleReport

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
    desk: Desk, caller: Caller, schedule: ScheduleReport, order: BareOrder
) -> ActionResult:
    """Let a schedule fire no more until it is resumed."""
    reason = order.reason or f"paused by {caller.actor.name}"
    await desk.provider.schedules.get(schedule.id).pause(reason)
    return ActionResult(changed=not schedule.paused, note="it is paused")


async def resume_schedule(
    desk: Desk, _caller: Caller, schedule: ScheduleReport, _order: BareOrder
) -> ActionResult:
    """Let a schedule fire again."""
    await desk.provider.schedules.get(schedule.id).resume()
    return ActionResult(changed=bool(schedule.paused), note="it is not paused")


async def run_schedule(
    desk: Desk, _caller: Caller, schedule: ScheduleReport, _order: BareOrder
) -> ActionResult:
    """Make a job of a schedule now."""
    job_id = await desk.provider.schedules.get(schedule.id).run_now()
    return ActionResult(changed=True, note=f"job {job_id} is made", job_id=job_id)


async def remove_schedule(
    desk: Desk, _caller: Caller, schedule: ScheduleReport, _order: BareOrder
) -> ActionResult:
    """Remove a schedule. The jobs that it has made stay."""
    done = await desk.provider.schedules.remove(schedule.id)
    return ActionResult(changed=done, note="it is removed")


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


SCHEDULE: Subject[ScheduleReport] = Subject("/schedules/{schedule}", _find)


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


READS = (
    Read("/schedules", "A page of the schedules.", ScheduleList, read_schedules, SchedulesQuery),
    Read("/schedules/{schedule}", "One schedule, and its next slots.", ScheduleView, read_schedule),
)
ACTS = (
    SCHEDULE.row("pause", "Pause a schedule.", "schedule.edit", BareOrder, pause_schedule),
    SCHEDULE.row("resume", "Resume a schedule.", "schedule.edit", BareOrder, resume_schedule),
    SCHEDULE.row("run", "Make a job of a schedule now.", "schedule.run", BareOrder, run_schedule),
    SCHEDULE.row(
        "remove", "Remove a schedule.", "schedule.edit", BareOrder, remove_schedule, method="DELETE"
    ),
)
