"""`eventbus audit`: who did what on the dashboard, or was refused."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from eventbus.admin.audit import AuditPage
from eventbus.cli.controls.watching import look
from eventbus.cli.output import say, write_lines
from eventbus.cli.toolkit import UrlOption, moment, open_console, printable, tell_asked
from eventbus.provider import EventProvider

__all__ = ["audit"]


def audit(
    *,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Of this actor.")] = None,
    action: Annotated[str | None, typer.Option(metavar="ACTION", help="Such as job.retry.")] = None,
    target: Annotated[str | None, typer.Option(metavar="TARGET", help="About this id or this event.")] = None,
    outcome: Annotated[
        str | None, typer.Option(metavar="OUTCOME", help="changed, unchanged, refused, failed or begun.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="So many.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, an object on a line for each.")
    ] = False,
    url: UrlOption = None,
) -> None:
    """List the actions that were asked for on a dashboard, newest first."""

    async def ask(provider: EventProvider) -> AuditPage:
        return await provider.inspector.audit.list(
            actor=actor, action=action, target=target, outcome=outcome, limit=limit
        )

    def show(found: AuditPage) -> None:
        if as_json:
            write_lines(found.entries)
        else:
            _print(found)

    look(url, ask, show, watch=False)


def _print(found: AuditPage) -> None:
    if not found.entries:
        say("nobody did anything of this kind on a dashboard")
        tell_asked()
        return
    table = Table(box=None, pad_edge=False)
    for head in ("at", "actor", "action", "target", "outcome"):
        table.add_column(head, no_wrap=True)
    table.add_column("reason", no_wrap=True, overflow="ellipsis")
    for each in found.entries:
        outcome = f"{each.outcome}: {each.detail}" if each.detail else each.outcome
        cells = (moment(each.at_ms), each.actor, each.action, each.target or each.queue, outcome, each.reason)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    open_console().print(table)
