"""The parts that commands about a server share, also the commands of other packages; see `plugins`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import typer

from eventbus.cli.failures import CommandError, is_debugging
from eventbus.cli.listing import Listing, Row, show_found
from eventbus.cli.loading import load_provider
from eventbus.cli.logs import configure_logs
from eventbus.cli.loop import run
from eventbus.cli.options import DryRunOption, UrlOption, YesOption
from eventbus.cli.output import say, tell_asked, write_json, write_lines
from eventbus.cli.screen import open_console
from eventbus.cli.server_choice import asking_provider, server_of
from eventbus.cli.session import started
from eventbus.cli.texts import describe_unknown, json_text, printable
from eventbus.cli.times import moment, span
from eventbus.model.names import shown
from eventbus.provider import EventProvider

__all__ = [
    "CommandError",
    "DryRunOption",
    "Listing",
    "Row",
    "UrlOption",
    "YesOption",
    "agree",
    "ask_server",
    "describe_unknown",
    "json_text",
    "load_provider",
    "moment",
    "open_console",
    "printable",
    "say",
    "server_of",
    "show_found",
    "shown",
    "span",
    "tell_asked",
    "write_json",
    "write_lines",
]

T = TypeVar("T")

_PATIENCE = 10.0  # seconds that the server may take to answer: a person at a terminal waits


def ask_server(
    url: str | None,
    ask: Callable[[EventProvider], Awaitable[T]],
    *,
    reads_only: bool = False,
    place: str | None = None,
) -> T:
    """Start a provider of that server, call `ask` with it, and return its result.

    With a program at `place` (`MODULE:PROVIDER`) it is the program's server, with its prefix, unless the
    command line
    names others. With `reads_only` the provider takes no emission and writes nothing by itself, and an
    embedded server
    must run already: a user without the right to write may ask. Otherwise the folder of an embedded server
    must be there.
    Raises StoreUnavailable at once if the server is not reachable, and the errors of `ask`.
    """
    configure_logs(None, level=logging.DEBUG if is_debugging() else logging.ERROR)
    provider = asking_provider(url, place, reply_timeout=_PATIENCE)
    return run(_ask(provider, ask, reads_only=reads_only))


async def _ask(
    provider: EventProvider, ask: Callable[[EventProvider], Awaitable[T]], *, reads_only: bool
) -> T:
    async with started(provider, reads_only=reads_only, expects="folder"):
        return await ask(provider)


def agree(question: str) -> bool:
    """Ask, and say that nothing was changed if the answer is no. Raises CommandError if nobody can answer."""
    try:
        is_agreed = typer.confirm(question)
    except typer.Abort:
        say()
        raise CommandError(
            "nobody answered, so nothing was changed; with --yes it does not ask", exit_code=2
        ) from None
    if not is_agreed:
        say("nothing was changed")
    return is_agreed
