"""What programs say of schedules and are told: options, and reports."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from eventbus.errors import DefinitionError, UsageError
from eventbus.model import clock
from eventbus.model.durations import Duration, milliseconds
from eventbus.model.names import shown
from eventbus.schedules.plan import CatchUp, OnFailure, Overlap, Plan, decode_plan
from eventbus.schedules.timetable import Timetable
from eventbus.schedules.zone import find_zone, to_local
from eventbus.store.readable import is_number, number
from eventbus.store.scripting.script_rows import ScheduleRow


class ScheduleKeywords(TypedDict, total=False):
    """The options of a schedule."""

    tz: str
    """IANA name of the time zone of `cron`, by default UTC."""
    overlap: Overlap
    """If the job of the slot before is open: `skip` the slot (default), `queue` it (the latest waits),
    `cancel` that job, or `allow` both."""
    catch_up: CatchUp
    """Of slots that nobody fired in time: `skip` them, fire the latest `once` (default), or `all`, one after
    the other.
    """
    window: Duration
    """How late a slot may be fired, by default one day."""
    jitter: Duration
    """Each slot is due up to so much later, by a length that follows from the id and the slot."""
    start: datetime
    end: datetime
    limit: int
    """How often it fires at most, by default without a limit."""
    immediately: bool
    """Whether the first slot of a new schedule is now. Not with `start`, and not with an `end` that
    is over.
    """
    on_failure: OnFailure
    """`go on` (default), or `pause` when a job has failed."""
    meta: dict[str, Any] | None
    """The meta of each job, over that of `provider.context` around the call. `schedule` and `slot` are the
    schedule's own.
    """


class ScheduleReport(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule as the server has it. Times are Unix ms, 0 where there is none."""

    id: str
    event: str
    queue: str
    """Where its jobs go: `event.<name>` or `workflow.<name>`."""
    cron: str
    every_ms: int
    tz: str
    next: int
    """The next slot; 0 for a schedule that is paused or at its end."""
    last: int
    last_job: str
    fired: int
    skipped: int
    missed: int
    is_held: bool
    """Whether a slot waits for the end of the last job."""
    paused: str
    """Why it is paused, `''` if it is not."""
    owner: str
    """The name of the provider whose program declares it, `''` for one that was added at run time."""
    overlap: str
    catch_up: str
    workers: int = 0
    """How many live workers serve its event or workflow, or a group of it. With 0 nobody handles it."""
    skipped_for: str = ""
    """Why slots were skipped, `''` if none was."""
    unreadable: str = ""
    """Why this program cannot read its plan, `''` if it can. Then event, queue, times and options are
    absent.
    """


def make_plan(
    event: str,
    queue: str,
    payload: bytes,
    table: dict[str, Any],
    options: ScheduleKeywords,
    *,
    has_default: bool,
) -> Plan:
    """Return a checked plan. `table` has `cron` or `every`, ms. Raises DefinitionError, which names the
    option.
    """
    unknown = sorted(set(options) - set(ScheduleKeywords.__annotations__))
    if unknown:
        raise DefinitionError(f"unknown option of a schedule: {shown(unknown[0])}")
    start, end = options.get("start"), options.get("end")
    plan = Plan(
        event=event,
        queue=queue,
        has_default=has_default,
        payload=msgspec.Raw(payload),
        table=Timetable(
            **table,
            tz=options.get("tz", "UTC"),
            anchor=0 if start is None else clock.to_unix_ms(start),
            start=None if start is None else clock.to_unix_ms(start),
            end=None if end is None else clock.to_unix_ms(end),
            jitter=milliseconds(options.get("jitter", 0), setting="jitter"),
        ),
        overlap=options.get("overlap", "skip"),
        catch_up=options.get("catch_up", "once"),
        window=milliseconds(options.get("window", "1 day"), setting="window"),
        on_failure=options.get("on_failure", "go on"),
        limit=options.get("limit", 0),
    )
    plan.check()
    if options.get("immediately") and start is not None:
        raise DefinitionError(
            f"expected immediately=True without start, got start={start.isoformat()}; leave one of them out"
        )
    return plan


def preview(table: Timetable, since: int, count: int) -> list[datetime]:
    """Return the slots after a point in time, Unix ms, in the zone of the timetable."""
    zone, found = find_zone(table.tz), list[datetime]()
    slot = table.next_after(since)
    while slot is not None and len(found) < count:
        found.append(to_local(slot, zone))
        slot = table.next_after(slot)
    return found


def place(
    given: Plan, row: ScheduleRow | None, now: int, *, immediately: bool, is_declared: bool = False
) -> tuple[Plan, int | None]:
    """Return the plan to store, with the anchor of an interval, and the next slot.

    A schedule whose times do not change keeps both. Raises DefinitionError for one that is to begin now,
    behind its end; if it is declared it has no slot, so that its program still starts when it is over.
    """
    old = _read_old(row)
    table = given.table
    is_free = bool(table.every) and table.start is None
    if old is not None and row is not None:
        same = msgspec.structs.replace(table, anchor=old.table.anchor) if is_free else table
        if same == old.table and row.slot:
            return msgspec.structs.replace(given, table=same), int(row.slot)
    if is_free:
        table = msgspec.structs.replace(table, anchor=now if immediately else now + table.every)
    plan = msgspec.structs.replace(given, table=table)
    if immediately and old is None and table.start is None:
        if table.end is None or now <= table.end:
            return plan, now
        if not is_declared:
            end = to_local(table.end, find_zone(table.tz)).isoformat()
            raise DefinitionError(f"expected end to be in the future with immediately=True, got: {end}")
    return plan, table.next_after(now)


def _read_old(row: ScheduleRow | None) -> Plan | None:
    try:
        return None if row is None else read_plan(row)
    except UsageError:  # of a newer release; what is put in its place begins anew
        return None


def read_plan(row: ScheduleRow) -> Plan:
    """Return the plan of a schedule. Raises UsageError for one that this program cannot read."""
    try:
        return decode_plan(row.plan)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(
            f"the schedule {row.id!r} cannot be read here: {error}; use the release that made it"
        ) from error


def show_times(report: ScheduleReport) -> str:
    """Return when a schedule fires, in the words of all who tell it; empty for one that cannot be read."""
    if report.cron:
        return f"{report.cron} {report.tz}"
    return f"every {report.every_ms / 1000:g} s" if report.every_ms else ""


def _describe_skipped(row: ScheduleRow, plan: Plan, serving: Mapping[str, int]) -> str:
    """Return why slots were skipped: the only reason is the overlap, which may have one of its own."""
    if not number(row.skipped):
        return ""
    why = f"the job of the slot before was open (overlap={plan.overlap})"
    is_unserved = plan.queue and not serving.get(plan.queue, 0)
    return f"{why}, and no worker serves {plan.queue} now" if is_unserved else why


def make_report(row: ScheduleRow, serving: Mapping[str, int]) -> ScheduleReport:
    """Return what a row of the store says. `serving` has how many live workers serve each queue."""
    reason = ""
    try:
        plan = read_plan(row)
    except UsageError as error:
        plan, reason = Plan(event="", queue="", table=Timetable()), str(error)
    damaged = [
        name for name in ("slot", "last", "fired", "skipped", "missed") if not is_number(getattr(row, name))
    ]
    if damaged and not reason:
        reason = f"where the schedule {row.id!r} stands cannot be read: {', '.join(damaged)}"
    return ScheduleReport(
        id=row.id,
        event=plan.event,
        queue=plan.queue,
        cron=plan.table.cron,
        every_ms=plan.table.every,
        tz=plan.table.tz,
        next=0 if row.paused else number(row.slot),
        last=number(row.last),
        last_job=row.lastjob,
        fired=number(row.fired),
        skipped=number(row.skipped),
        missed=number(row.missed),
        is_held=bool(row.held),
        paused=row.paused,
        owner=row.owner,
        overlap=plan.overlap,
        catch_up=plan.catch_up,
        workers=serving.get(plan.queue, 0),
        skipped_for=_describe_skipped(row, plan, serving),
        unreadable=reason,
    )
