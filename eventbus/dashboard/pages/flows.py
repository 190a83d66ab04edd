"""The pages of flows: their list, one flow with its graph, its times and its steps, and the times as
a file.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from eventbus.dashboard.api.routes import API, Handler
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.flows.flow import find_flow, states_of, view_flow
from eventbus.dashboard.desk.flows.graph import GraphQuery, view_graph
from eventbus.dashboard.desk.flows.listing import FlowsQuery, read_flows, read_versions
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.links import Links
from eventbus.dashboard.pages.gantt import draw
from eventbus.dashboard.pages.graph_data import graph_data
from eventbus.dashboard.pages.rendering import Renderer
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.reading import names_in, read_query
from eventbus.model.states import FINAL_STATES

__all__ = ["ROWS", "FlowPages"]

ROWS = 100
"""Steps on one page of the table."""


class StepsQuery(msgspec.Struct, frozen=True):
    """Which page of the steps is shown, from 1; with `state` those in it."""

    steps: int = 1
    state: str = ""


class StepRows(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the steps of a flow: the names, and how many there are in each state."""

    names: list[str]
    counts: dict[str, int]
    page: int
    pages: int
    chosen: str


class FlowPages:
    """The pages of the flows of one dashboard."""

    def __init__(self, desk: Desk, renderer: Renderer) -> None:
        self._desk = desk
        self._renderer = renderer

    def handlers(self) -> list[tuple[str, str, Handler]]:
        """Return the method, the path and the handler of each route."""
        return [
            ("GET", "/flows", self._list),
            ("GET", "/flows/{flow}", self._show),
            ("GET", "/flows/{flow}/timeline.svg", self._timeline),
            ("GET", f"{API}/flows/{{flow}}/timeline.svg", self._timeline),
        ]

    async def _list(self, request: Request, caller: Caller, links: Links) -> Response:
        query = read_query(request, FlowsQuery, "done")
        found = await read_flows(self._desk, caller, {}, query)
        told = await read_versions(self._desk, caller, {}, None)
        return self._renderer.page(
            request, caller.actor, links, "flows", found=found, versions=told.versions, query=query
        )

    async def _show(self, request: Request, caller: Caller, links: Links) -> Response:
        query = read_query(request, StepsQuery, "done")
        found = await find_flow(self._desk, caller, names_in(request)["flow"])
        view, graph = await asyncio.gather(
            view_flow(self._desk, caller, found), view_graph(self._desk, caller, found, GraphQuery())
        )
        report = view.tree["report"]
        return self._renderer.page(
            request,
            caller.actor,
            links,
            "flow",
            view=view,
            graph=graph,
            graph_data=graph_data(graph, links),
            drawing=draw(report),
            rows=cut_steps(report, query.steps, query.state),
            states_of=states_of,
            row_count=ROWS,
            is_open=view.state not in FINAL_STATES,
        )

    async def _timeline(self, request: Request, caller: Caller, links: Links) -> Response:
        found = await find_flow(self._desk, caller, names_in(request)["flow"])
        drawing = draw(found.tree["report"])
        if drawing is None:
            raise Problem(409, "no step of this flow has begun, so there are no times to draw")
        headers = {"content-disposition": 'attachment; filename="timeline.svg"'}
        return self._renderer.file(
            request,
            links,
            "timeline.svg",
            "image/svg+xml",
            headers=headers,
            drawing=drawing,
            flow=found.target.id,
        )


def cut_steps(report: dict[str, Any], page: int, chosen: str) -> StepRows:
    """Return a page of the steps of a report. A page that does not exist is the nearest one that does."""
    states = states_of(report)
    counts = dict(Counter(states.values()))
    meant = [name for name, state in states.items() if chosen in ("", state)]
    pages = max(-(-len(meant) // ROWS), 1)
    page = min(max(page, 1), pages)
    return StepRows(
        names=meant[(page - 1) * ROWS : page * ROWS],
        counts=counts,
        page=page,
        pages=pages,
        chosen=chosen,
    )
