"""`eventbus audit`: who did what on the dashboard, or was refused."""

from __future__ import annotations

from typing import Annotated

import typer

from eventbus.admin.audit import AuditEntry
from eventbus.cli.controls.watching import look
from eventbus.cli.listing import Listing, Row
from eventbus.cli.options import LinesOption, UrlOption
from eventbus.cli.times import moment
from eventbus.provider import EventProvider


def audit(
    *,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Of this actor.")] = None,
    action: Annotated[str | None, typer.Option(metavar="ACTION", help="Such as job.retry.")] = None,
    target: Annotated[str | None, typer.Option(metavar="TARGET", help="About this id or this event.")] = None,
    outcome: Annotated[
        str | None, typer.Option(metavar="OUTCOME", help="changed, unchanged, refused, failed or begun.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="So many.")] = 20,
    as_json: LinesOption = False,
    url: UrlOption = None,
) -> None:
    """List the actions that were asked for on a dashboard, newest first."""

    async def ask(provider: EventProvider) -> list[AuditEntry]:
        page = await provider.inspector.audit.list(
            actor=actor, action=action, target=target, outcome=outcome, limit=limit
        )
        return page.entries

    look(url, ask, _LISTING.print, as_json=as_json)


def _row(each: AuditEntry) -> Row:
    outcome = f"{each.outcome}: {each.detail}" if each.detail else each.outcome
    return moment(each.at_ms), each.actor, each.action, each.target or each.queue, outcome, each.reason


_LISTING = Listing(
    _row, "at, actor, action, target, outcome, reason", none="nobody did anything of this kind on a dashboard"
)
