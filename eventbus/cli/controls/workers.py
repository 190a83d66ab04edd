"""`eventbus workers`: lists every worker, with its process, its load and its queues.

The command needs no program, because workers tell the server of themselves.
"""

from __future__ import annotations

from eventbus.admin.workers import WorkerReport
from eventbus.cli.controls.overview_views import list_workers
from eventbus.cli.controls.watching import look
from eventbus.cli.options import LinesOption, UrlOption, WatchOption
from eventbus.model import clock

__all__ = ["workers"]


def workers(
    *,
    as_json: LinesOption = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> None:
    """List the workers: host, process, version, load, event loop's lag, when they were heard, queues."""
    look(url, lambda provider: provider.inspector.workers.list(), _print, as_json=as_json, watch=watch)


def _print(found: list[WorkerReport]) -> None:
    list_workers(round(clock.now() * 1000)).print(found)
