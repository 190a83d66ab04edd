"""`eventbus schedules`: lists schedules, shows and changes one, and previews an expression.

The commands need no program, because a plan in the server has all that firing needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, tzinfo
from typing import Annotated, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from eventbus.cli.controls.watching import look
from eventbus.cli.listing import Listing, Row
from eventbus.cli.options import LinesOption, UrlOption, WatchOption
from eventbus.cli.output import say, tell_old_name
from eventbus.cli.toolkit import CommandError, ask_server, describe_unknown, moment, open_console
from eventbus.errors import UsageError
from eventbus.model import clock
from eventbus.model.names import shown
from eventbus.provider import EventProvider
from eventbus.schedule_client import Schedule
from eventbus.schedules.options import ScheduleReport, preview, show_times
from eventbus.schedules.timetable import Timetable
from eventbus.schedules.zone import find_zone

T = TypeVar("T")

app: typer.Typer = typer.Typer(help="List schedules and change them.", invoke_without_command=True)

_Id = Annotated[str, typer.Argument(metavar="ID")]


@app.callback()
def list_unless_asked(
    context: typer.Context, *, as_json: LinesOption = False, watch: WatchOption = False, url: UrlOption = None
) -> None:
    """Without a command: list."""
    if context.invoked_subcommand is None:
        list_all(as_json=as_json, watch=watch, url=url)


@app.command("list")
def list_all(*, as_json: LinesOption = False, watch: WatchOption = False, url: UrlOption = None) -> None:
    """List the schedules, the next one first."""
    look(url, lambda provider: provider.schedules.list(), _LISTING.print, as_json=as_json, watch=watch)


@app.command("show")
def show(schedule: _Id, *, url: UrlOption = None) -> None:
    """Print where one schedule stands, and its next slots."""
    report, slots = _ask(url, schedule, _show, reads_only=True)
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in _lines(report):
        table.add_row(name, value)
    for slot in slots:
        table.add_row("then" if slot is not slots[0] else "slots from now", _wall(slot))
    open_console().print(table)


@app.command("backfill")
def backfill(
    schedule: _Id,
    since: Annotated[str, typer.Argument(metavar="SINCE", help="ISO time, in the zone of the schedule.")],
    until: Annotated[str, typer.Argument(metavar="UNTIL", help="ISO time; it is included.")],
    *,
    url: UrlOption = None,
) -> None:
    """Make a job for each slot of a time that has none, and print the jobs of its slots."""
    jobs = _ask(url, schedule, lambda each: _backfill(each, since, until))
    say(*jobs or ["no slots"])


@app.command("pause")
def pause(
    schedule: _Id,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Kept and shown.")] = "",
    url: UrlOption = None,
) -> None:
    """Fire no more until it is resumed."""
    _ask(url, schedule, lambda each: each.pause(reason))
    say(f"schedule {schedule} is paused")


@app.command("resume")
def resume(schedule: _Id, *, url: UrlOption = None) -> None:
    """Fire again, from the next slot on."""
    _ask(url, schedule, lambda each: each.resume())
    say(f"schedule {schedule} goes on")


@app.command("run")
def run_now(schedule: _Id, *, url: UrlOption = None) -> None:
    """Make a job now, and print its id."""
    say(_ask(url, schedule, lambda each: each.run_now()))


@app.command("trigger", hidden=True)
def trigger(schedule: _Id, *, url: UrlOption = None) -> None:
    """Do what `run` does; the old name, for one release."""
    tell_old_name("eventbus schedules trigger", "eventbus schedules run")
    run_now(schedule, url=url)


@app.command("remove")
def remove(schedule: _Id, *, url: UrlOption = None) -> None:
    """Remove it. A worker whose program declares it makes it again."""
    _ask(url, schedule, lambda each: each.remove())
    say(f"schedule {schedule} is removed")


@app.command("preview")
def preview_slots(
    cron: Annotated[str, typer.Argument(metavar="CRON")],
    *,
    tz: Annotated[str, typer.Option("--tz", help="IANA name of the time zone.")] = "UTC",
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many slots.")] = 5,
) -> None:
    """Print the next slots of a cron expression, and where the clock is changed between two of them."""
    table = Timetable(cron=cron, tz=tz)
    table.check()
    before = None
    for slot in preview(table, round(clock.now() * 1000), count):
        offset = slot.utcoffset()
        if before is not None and offset is not None and offset != before:
            say(f"-- the clock goes {'forward' if offset > before else 'back'} here")
        before = offset
        say(_wall(slot))


def _ask(
    url: str | None, schedule: str, act: Callable[[Schedule], Awaitable[T]], *, reads_only: bool = False
) -> T:
    """Return what `act` returns of a schedule. Raises CommandError for one that the server does not know."""

    async def ask(provider: EventProvider) -> T:
        found = provider.schedules.get(schedule)
        try:
            return await act(found)
        except UsageError:
            known = [each.id for each in await provider.schedules.list()]
            if schedule in known:
                raise
            url, listing = provider.settings.url, "eventbus schedules"
            said = describe_unknown("schedule", schedule, known, url, listing=listing)
            raise CommandError(said, exit_code=1) from None

    return ask_server(url, ask, reads_only=reads_only)


async def _show(schedule: Schedule) -> tuple[ScheduleReport, list[datetime]]:
    report = await schedule.report()
    return report, [] if report.unreadable or not report.next else await schedule.next()


async def _backfill(schedule: Schedule, since: str, until: str) -> list[str]:
    zone = find_zone((await schedule.report()).tz)
    return await schedule.backfill(_read_time(since, zone), _read_time(until, zone))


def _read_time(text: str, zone: tzinfo) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"expected an ISO time such as 2026-03-01T09:00, got: {shown(text)}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=zone)


def _wall(slot: datetime) -> str:
    return slot.strftime("%a %Y-%m-%d %H:%M:%S %z")


def _lines(report: ScheduleReport) -> list[tuple[str, str]]:
    state = "a slot waits for the end of the last job" if report.is_held else "waits for its next slot"
    rows = [
        ("schedule", report.id),
        ("event", report.event),
        ("times", show_times(report)),
        ("state", f"paused: {report.paused}" if report.paused else state if report.next else "at its end"),
        ("unreadable", report.unreadable),
        ("declared by", report.owner or "nobody: it was added at run time"),
        (
            "workers",
            str(report.workers) if report.workers or report.unreadable else f"none serves {report.queue}",
        ),
        ("overlap", report.overlap),
        ("catch up", report.catch_up),
        ("fired", str(report.fired)),
        ("skipped", f"{report.skipped}: {report.skipped_for}" if report.skipped else "0"),
        ("missed", str(report.missed)),
        ("last slot", moment(report.last) if report.last else ""),
        ("last job", report.last_job),
    ]
    return [(name, value) for name, value in rows if value]


def _row(each: ScheduleReport) -> Row:
    times = (show_times(each), moment(each.next), moment(each.last))
    workers = Text(str(each.workers), "" if each.workers or each.unreadable else "bold red")
    counts = (each.fired, each.skipped, each.missed, workers)
    return each.id, each.event, *times, *counts, Text(each.paused), Text(each.skipped_for)


_LISTING = Listing(
    _row,
    "schedule, event, times, next, last, >fired, >skipped, >missed, >workers, paused, skipped for",
    none="no schedules",
    optional="skipped for",
)
