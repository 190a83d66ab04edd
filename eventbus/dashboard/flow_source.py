"""The flows that a dashboard shows: a protocol, because `eventbus` does not know `workflows`.

A `workflows.WorkflowProvider` has these methods, so it is given as `Dashboard(provider, flows=flows)`. The
reports are turned into dicts and lists (`msgspec.to_builtins`), so pages need no class of `workflows`.
Weighed: pages in `workflows/dashboard/`, put in by a plug-in. They would need templates, guards and answers
of this package, all of which would become public; the protocol needs seven methods. Its answers are converted
to structs of the dashboard, such as `FlowLine`: these are the forms of its API, with the fields of the
structs of `workflows`, and `tests/dashboard/test_flow_forms.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from eventbus.model.durations import Duration
from eventbus.provider import EventProvider

FLOW_SOURCES = "eventbus.flow_sources"
"""The entry-point group of packages that have flows: a callable that takes an EventProvider and returns a
FlowSource.
"""


class FlowSource(Protocol):
    """Reads flows and runs them again."""

    async def flow_page(
        self,
        workflow: str | None = None,
        *,
        state: str | None = None,
        limit: int = 50,
        cursor: str = "",
        call_timeout: Duration | None = None,
    ) -> Any:
        """Return a struct with a page of `flows`, the `cursor` of the next one, and how many were `seen`.

        A flow is a struct with `flow_id`, `workflow`, `state`, `run`, `version`, `completed`, `error`, times.
        """
        ...

    async def versions(self, *, call_timeout: Duration | None = None) -> Sequence[Any]:
        """Return the versions of all workflows, as structs with `workflow`, `version`, `open`, `workers`,
        `is_newest`, `is_exact`.
        """
        ...

    async def tree(self, flow_id: str, *, call_timeout: Duration | None = None) -> Any:
        """Return a struct with the `report` of a flow, the `errors` of its steps, and the `nested` trees."""
        ...

    async def graph(
        self, flow_id: str, *, tree: Any = None, folded: bool = True, call_timeout: Duration | None = None
    ) -> Any:
        """Return the graph of a flow, as a struct with `nodes` and `edges`; `tree` is what `tree` returned
        for it.
        """
        ...

    async def waits(self, flow_id: str, *, call_timeout: Duration | None = None) -> Sequence[Any]:
        """Return what an open flow waits for, as structs with `place`, `signal`, `since_ms`, `until_ms`."""
        ...

    async def signal(
        self, flow_id: str, name: str, payload: Any = None, *, call_timeout: Duration | None = None
    ) -> None:
        """Send a flow a signal. Raises an EventBusError for one that does not fit, or that the flow cannot
        take.
        """
        ...

    async def retry(
        self,
        flow_id: str,
        resume: bool | None = None,
        *,
        run: int | None = None,
        call_timeout: Duration | None = None,
    ) -> Any:
        """Begin the run after `run`. Raises an EventBusError if `run` is not the last one, or has not
        ended.
        """
        ...


def find_flow_source(provider: EventProvider) -> FlowSource | None:
    """Return the flows of the first package that has any; None if none is installed."""
    for point in sorted(entry_points(group=FLOW_SOURCES), key=lambda point: point.name):
        return point.load()(provider)
    return None
