"""The server of a command and the prefix of its keys: `--url` and `--prefix`, else those of a program, else the environment.

What must hold: a command that is given a program asks the server that the program uses, with its prefix. Every command with
`--url` has `--prefix`: `add_prefix` gives it to them, so that none can be forgotten.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from eventbus.cli.loading import load_provider, with_settings
from eventbus.model.url_redaction import redact
from eventbus.provider import EventProvider

__all__ = [
    "add_prefix",
    "asked_server",
    "asking_provider",
    "begin_line",
    "choose_server",
    "empty_answer",
    "server_of",
]


class _Given:
    """What the command line says: one value for the process, set by each command line."""

    prefix: str | None = None
    asked: str = ""
    """The server that a command has asked, for the text of an empty answer."""


def begin_line() -> None:
    """Begin a command line, which knows nothing of one before it."""
    _Given.prefix, _Given.asked = None, ""


def add_prefix(command: Any) -> Any:
    """Give the option `--prefix` to a command that has `--url`, and to those in it; return the command. May be repeated."""
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


def choose_server(provider: EventProvider, url: str | None) -> EventProvider:
    """Put the server that the command line names over the settings of a provider that is not started."""
    return with_settings(provider, url=url, prefix=_Given.prefix)


def asking_provider(url: str | None, place: str | None = None, **settings: Any) -> EventProvider:
    """Return a provider without handlers, for a look at the server of a command.

    It is the one of the program at `place` (`MODULE:PROVIDER`), if that is given. Raises CommandError, ConfigError.
    """
    provider = EventProvider()
    if place is not None:
        provider.settings = load_provider(place).settings
    with_settings(choose_server(provider, url), **settings)
    _Given.asked = server_of(provider)
    return provider


def server_of(provider: EventProvider) -> str:
    """Return the server of a provider and the prefix of its keys, without a password."""
    url = provider.settings.url
    scheme, _, path = url.partition(":")
    if scheme.lower() == "embedded":  # the folder depends on where the command runs, so it is told whole
        url = f"{scheme}:{Path(path).expanduser().resolve()}"
    return f"{redact(url)} (prefix {provider.settings.prefix})"


def asked_server() -> str:
    """Return the server that this command line has asked; empty if none."""
    return _Given.asked


def empty_answer(said: str) -> str:
    """Return an answer that found nothing, with the server that was asked and the way to another one."""
    return f"{said}; asked {_Given.asked}: --url and --prefix name another server"
