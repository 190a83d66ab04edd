"""`eventbus groups`: lists the groups of events, and removes a group that nobody serves any more.

The command needs no program, because it reads only the server.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from eventbus.admin.groups import GroupReport
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.controls.watching import look
from eventbus.cli.listing import Listing, Row
from eventbus.cli.options import LinesOption, UrlOption, WatchOption
from eventbus.cli.output import say
from eventbus.cli.toolkit import CommandError, ask_server, moment, span
from eventbus.provider import EventProvider


def groups(
    event: Annotated[str | None, typer.Argument(metavar="[EVENT]", help="Of this event only.")] = None,
    *,
    remove: Annotated[
        str | None,
        typer.Option("--remove", metavar="GROUP", help="Remove this group, cancel what waits for it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Remove it though workers serve it.")] = False,
    as_json: LinesOption = False,
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
    look(url, partial(_list, event=event), _LISTING.print, as_json=as_json, watch=watch)
    return 0


def _row(each: GroupReport) -> Row:
    oldest = span(each.oldest_ms, 0) if each.oldest_ms else "-"
    workers = Text(str(each.workers), "" if each.workers else "bold red")
    return each.event, each.name, each.waiting, each.parked, oldest, workers, moment(each.served_ms)


_LISTING = Listing(
    _row, "event, group, >waiting, >parked, oldest, >workers, served", none="no groups beside default"
)


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
