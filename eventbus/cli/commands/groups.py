"""`eventbus groups`: lists the groups of events, and removes a group that nobody serves any more.

The command needs no program, because it reads only the server.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from eventbus.admin.groups import GroupReport
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.controls.watching import WatchOption, look
from eventbus.cli.output import say, write_lines
from eventbus.cli.toolkit import CommandError, UrlOption, ask_server, moment, open_console, span, tell_asked
from eventbus.provider import EventProvider

__all__ = ["groups"]


def groups(
    event: Annotated[str | None, typer.Argument(metavar="[EVENT]", help="Of this event only.")] = None,
    *,
    remove: Annotated[
        str | None,
        typer.Option("--remove", metavar="GROUP", help="Remove this group, cancel what waits for it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Remove it though workers serve it.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, an object on a line for each.")
    ] = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> int:
    """List the groups of events beside `default`, with what waits for them and who serves them; or remove
    one.
    """
    if remove is not None:
        if watch:
            raise CommandError("expected either --remove or --watch, got both")
        if event is None:
            raise CommandError(
                "expected an EVENT whose group to remove: eventbus groups EVENT --remove GROUP"
            )
        count = ask_server(url, partial(_remove, event=event, group=remove, force=force))
        say(f"group {remove} of {event} is removed, {count} job{'' if count == 1 else 's'} cancelled")
        return 0
    if force:
        raise CommandError("expected --force with --remove only")
    look(url, partial(_list, event=event), write_lines if as_json else _print, watch=watch)
    return 0


def _print(found: list[GroupReport]) -> None:
    if not found:
        say("no groups beside default")
        tell_asked()
        return
    table = Table(box=None, pad_edge=False)
    for name in ("event", "group", "waiting", "parked", "oldest", "workers", "served"):
        is_count = name in ("waiting", "parked", "workers")
        table.add_column(name, no_wrap=True, justify="right" if is_count else "left")
    for report in found:
        table.add_row(
            report.event,
            report.name,
            str(report.waiting),
            str(report.parked),
            span(report.oldest_ms, 0) if report.oldest_ms else "-",
            Text(str(report.workers), "" if report.workers else "bold red"),
            moment(report.served_ms),
        )
    open_console().print(table)


async def _list(provider: EventProvider, event: str | None) -> list[GroupReport]:
    found = await provider.inspector.queues.groups(event)
    if event is not None and not found:
        await check_known(provider, queue_of(event))
    return found


async def _remove(provider: EventProvider, event: str, group: str, *, force: bool) -> int:
    known = [report.name for report in await provider.inspector.queues.groups(event)]
    count = await provider.remove_group(event, group, force=force)
    if group not in known and not count:
        there = f"there is: {', '.join(known)}" if known else "it has none beside default"
        raise CommandError(f"{event} has no group {group}; {there}", exit_code=1)
    return count
