"""The dashboard: pages and a management API for jobs, queues, flows and workers, as one ASGI app. Extra
`dashboard`.

    entry (who may) -> desk (what is read and done) -> api, pages (as JSON, as HTML) -> app (one request)

It only uses what a provider offers to everybody, and is closed until it is told who may come in.
"""

from __future__ import annotations

try:
    from eventbus.dashboard.app import Dashboard
    from eventbus.dashboard.entry.actor import Actor
    from eventbus.dashboard.entry.rights import Target
    from eventbus.dashboard.flow_source import FlowSource
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] not in ("jinja2", "markupsafe", "starlette"):
        raise
    raise ImportError(
        f"the dashboard needs {_error.name}, which is not installed: "
        "pip install 'eventbus-workflows[dashboard]'"
    ) from _error

__all__ = ["Actor", "Dashboard", "FlowSource", "Target"]
