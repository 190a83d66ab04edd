"""The pages of flows: their list, one flow with its graph, its times and its steps, and the times as
a file.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
from starlette.responses import Response

from eventbus.dashboard.api.routes import API
from eventbus.dashboard.desk.flows.flow import find_flow, states_of, view_flow
from eventbus.dashboard.desk.flows.graph import GraphQuery, view_graph
from eventbus.dashboard.desk.flows.listing import FlowsQuery, read_flows, read_versions
from eventbus.dashboard.pages.gantt import draw
from eventbus.dashboard.pages.graph_data import graph_data
from eventbus.dashboard.pages.rendering import Page, Visit
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.reading import names_in, read_query
from eventbus.model.states import FINAL_STATES

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


async def _list(visit: Visit) -> Response:
    query = read_query(visit.request, FlowsQuery, "done")
    found = await read_flows(visit.desk, visit.caller, {}, query)
    told = await read_versions(visit.desk, visit.caller, {}, None)
    return visit.page("flows", found=found, versions=told.versions, query=query)


async def _show(visit: Visit) -> Response:
    desk, caller = visit.desk, visit.caller
    query = read_query(visit.request, StepsQuery, "done")
    found = await find_flow(desk, caller, names_in(visit.request)["flow"])
    view, graph = await asyncio.gather(
        view_flow(desk, caller, found), view_graph(desk, caller, found, GraphQuery())
    )
    report = view.tree["report"]
    return visit.page(
        "flow",
        view=view,
        graph=graph,
        graph_data=graph_data(graph, visit.links),
        drawing=draw(report),
        rows=cut_steps(report, query.steps, query.state),
        states_of=states_of,
        row_count=ROWS,
        is_open=view.state not in FINAL_STATES,
    )


async def _timeline(visit: Visit) -> Response:
    found = await find_flow(visit.desk, visit.caller, names_in(visit.request)["flow"])
    drawing = draw(found.tree["report"])
    if drawing is None:
        raise Problem(409, "no step of this flow has begun, so there are no times to draw")
    headers = {"content-disposition": 'attachment; filename="timeline.svg"'}
    shown = {"drawing": drawing, "flow": found.target.id}
    return visit.plain("timeline.svg", headers=headers, media="image/svg+xml", **shown)


PAGES: tuple[tuple[str, str, Page], ...] = (
    ("GET", "/flows", _list),
    ("GET", "/flows/{flow}", _show),
    ("GET", "/flows/{flow}/timeline.svg", _timeline),
    ("GET", f"{API}/flows/{{flow}}/timeline.svg", _timeline),
)


def cut_steps(report: dict[str, Any], page: int, chosen: str) -> StepRows:
    """Return a page of the steps of a report. A page that does not exist is the nearest one that does."""
    states = states_of(report)
    counts = dict(Counter(states.values()))
    meant = [name for name, state in states.items() if chosen in ("", state)]
    pages = max(-(-len(meant) // ROWS), 1)
    page = min(max(page, 1), pages)
    return StepRows(
        names=meant[(page - 1) * ROWS : page * ROWS], counts=counts, page=page, pages=pages, chosen=chosen
    )
