"""The server of a command and the prefix of its keys: those of the command line, else of a program, else of
the environment.

What must hold: a command that is given a program asks the server that the program uses, with its prefix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventbus.cli.loading import load_provider, with_settings
from eventbus.cli.output import note_asked
from eventbus.cli.prefix_option import given_prefix
from eventbus.model.url_redaction import redact
from eventbus.provider import EventProvider


def choose_server(provider: EventProvider, url: str | None) -> EventProvider:
    """Put the server that the command line names over the settings of a provider that is not started."""
    return with_settings(provider, url=url, prefix=given_prefix())


def asking_provider(url: str | None, place: str | None = None, **settings: Any) -> EventProvider:
    """Return a provider without handlers, for a look at the server of a command.

    It is the one of the program at `place` (`MODULE:PROVIDER`), if that is given. Raises CommandError,
    ConfigError.
    """
    provider = EventProvider()
    if place is not None:
        provider.settings = load_provider(place).settings
    with_settings(choose_server(provider, url), **settings)
    note_asked(server_of(provider))
    return provider


def server_of(provider: EventProvider) -> str:
    """Return the server of a provider and the prefix of its keys, without a password."""
    url = provider.settings.url
    scheme, _, path = url.partition(":")
    if scheme.lower() == "embedded":  # the folder depends on where the command runs, so it is told whole
        url = f"{scheme}:{Path(path).expanduser().resolve()}"
    return f"{redact(url)} (prefix {provider.settings.prefix})"
