"""Options and arguments that several commands have, each with its one help text."""

from __future__ import annotations

from typing import Annotated

import typer

UrlOption = Annotated[str | None, typer.Option(help="The server; default EVENTBUS_URL, else ./.eventbus.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
LinesOption = Annotated[bool, typer.Option("--json", help="Print JSON, an object on a line for each.")]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Show it again every 2 seconds, until it is interrupted.")
]
GroupOption = Annotated[str | None, typer.Option("--group", help="Of this group of the event.")]
JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or ID@GROUP.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only count them.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
