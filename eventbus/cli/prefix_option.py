"""The option `--prefix`, which every command with `--url` has: it is added to them, so that none can be
forgotten.

It is none of the parameters of their functions: `server_choice` asks for it where a provider is made.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command


class _Given:
    """What the command line says: one value for the process, set by each command line."""

    prefix: str | None = None


def begin_line() -> None:
    """Begin a command line, which knows nothing of one before it."""
    _Given.prefix = None


def given_prefix() -> str | None:
    """Return the prefix that the command line names; None if it names none."""
    return _Given.prefix


def add_prefix(command: Any) -> Any:
    """Give the option `--prefix` to a command that has `--url`, and to those in it; return the command.
    May be repeated.
    """
    names = {each.name for each in command.params}
    if "url" in names and "prefix" not in names:
        command.params.append(_prefix_option())
    for each in getattr(command, "commands", {}).values():
        add_prefix(each)
    return command


def _keep(value: str | None) -> None:
    if value is not None:  # a command inside a group that was given one says nothing
        _Given.prefix = value


@cache
def _prefix_option() -> Any:
    """Return the option as typer makes it, whatever its release calls the parts of an option."""
    around = typer.Typer(add_completion=False, rich_markup_mode=None)

    @around.command()
    def hold(  # pyright: ignore[reportUnusedFunction]
        prefix: Annotated[
            str | None,
            typer.Option(
                metavar="TEXT",
                help="What the keys begin with; default the program's own, else EVENTBUS_PREFIX.",
                callback=_keep,
                expose_value=False,
            ),
        ] = None,
    ) -> None:
        pass

    return next(each for each in get_command(around).params if each.name == "prefix")
