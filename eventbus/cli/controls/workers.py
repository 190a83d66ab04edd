"""`eventbus workers`: lists every worker, with its process, its load and its queues.

The command needs no program, because workers tell the server of themselves.
"""

from __future__ import annotations

from typing import Annotated

import typer

from eventbus.admin.workers import WorkerReport
from eventbus.cli.controls.overview_views import tabulate_workers
from eventbus.cli.controls.watching import WatchOption, look
from eventbus.cli.output import write_lines
from eventbus.cli.toolkit import UrlOption, open_console, tell_asked
from eventbus.model import clock
from eventbus.provider import EventProvider

__all__ = ["workers"]


def workers(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, an object on a line for each.")
    ] = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> None:
    """List the workers: host, process, version, load, event loop's lag, when they were heard, queues."""

    async def ask(provider: EventProvider) -> list[WorkerReport]:
        return await provider.inspector.workers.list()

    look(url, ask, write_lines if as_json else _print, watch=watch)


def _print(found: list[WorkerReport]) -> None:
    open_console().print(tabulate_workers(found, round(clock.now() * 1000)))
    if not found:
        tell_asked()
