"""Reads that are shown again and again: `--watch`. On a screen each one takes the place of the one before."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from eventbus.cli.listing import show_found
from eventbus.cli.toolkit import ask_server
from eventbus.provider import EventProvider

T = TypeVar("T")

_EVERY = 2.0
"""Seconds between two looks."""
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def look(
    url: str | None,
    ask: Callable[[EventProvider], Awaitable[T]],
    print_: Callable[[T], None],
    *,
    as_json: bool = False,
    watch: bool = False,
) -> None:
    """Ask the server and print the answer, or write it as JSON; with `watch` again every 2 seconds over one
    connection, until interrupted.
    """
    show = partial(show_found, print_=print_, as_json=as_json)
    if not watch:
        show(ask_server(url, ask, reads_only=True))
        return

    async def repeat(provider: EventProvider) -> None:
        while True:
            found = await ask(provider)
            if sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            show(found)
            sys.stdout.flush()
            await asyncio.sleep(_EVERY)

    ask_server(url, repeat, reads_only=True)
