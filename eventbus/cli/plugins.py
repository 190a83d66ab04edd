"""Plug-ins: commands that other packages add to `eventbus` by entry points of the group `eventbus.commands`.

    [project.entry-points."eventbus.commands"]
    flows = "workflows.cli.flows:app"

The name of an entry point is that of the command, and its object is a `typer.Typer`. `eventbus` imports no
package that is built on top of it, so its own commands start without plug-ins. A plug-in is imported only
when its command runs, or when the help lists all commands. If it cannot be imported, its command reports
that, and the other commands still work.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.main import get_command

from eventbus.cli.failures import BorderGroup, CommandError, import_hint, one_line

__all__ = ["COMMANDS", "PluginGroup"]

COMMANDS = "eventbus.commands"
"""The entry-point group. The value of each entry point is a `typer.Typer`."""


class PluginGroup(BorderGroup):
    """The commands of `eventbus`, followed by those of plug-ins. A plug-in cannot replace a command."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        own = super().list_commands(ctx)
        return own + [name for name in sorted(_find_all()) if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if there is none of this name."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in _find_all():
            return own
        return get_command(_load(_find_all()[cmd_name]))


@cache
def _find_all() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMANDS)}


def _load(point: EntryPoint) -> typer.Typer:
    """Import a plug-in. If that fails, return a command that reports the failure."""
    try:
        app = point.load()
    except Exception as error:  # noqa: BLE001  (the code of another package may raise anything)
        return _in_place_of(
            point, one_line(error) + (import_hint() if isinstance(error, ImportError) else ""), error
        )
    if not isinstance(app, typer.Typer):
        return _in_place_of(point, f"it is {type(app).__name__}, expected a typer.Typer", None)
    return app


def _in_place_of(point: EntryPoint, why: str, cause: Exception | None) -> typer.Typer:
    package = point.dist.name if point.dist is not None else "an unknown distribution"
    broken = typer.Typer(rich_markup_mode=None)

    @broken.command(
        help=f"Cannot be loaded from {point.value}.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def fail() -> None:  # pyright: ignore[reportUnusedFunction]
        raise CommandError(
            f"the command {point.name} of {package} cannot be loaded from {point.value}: {why}"
        ) from cause

    return broken
