"""`eventbus server`: the embedded server of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eventbus.cli.failures import CommandError
from eventbus.cli.output import say
from eventbus.errors import UsageError
from eventbus.store.embedded.server import end_server

app: typer.Typer = typer.Typer(help="The embedded server.", rich_markup_mode=None)


@app.callback()
def server() -> None:
    """Manage the embedded server of a folder."""


@app.command()
def stop(
    path: Annotated[Path, typer.Argument(metavar="[PATH]", help="The folder with its data.")] = Path(
        ".eventbus"
    ),
    force: Annotated[bool, typer.Option("--force", help="End it even if processes use it.")] = False,
) -> int:
    """End the embedded server of a folder; its data stays."""
    try:
        is_ended = end_server(path, force=force)
    except UsageError as error:
        raise CommandError(f"{error} (--force)", exit_code=1) from error
    say(f"server in {path} ended" if is_ended else f"no server runs in {path}")
    return 0
