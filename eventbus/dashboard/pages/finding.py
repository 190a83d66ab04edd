"""The page of the search: the box in the head of each page leads here, and from here to what was meant if it
is one thing.
"""

from __future__ import annotations

from typing import get_args

from starlette.requests import Request
from starlette.responses import Response

from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.jobs import find_job
from eventbus.dashboard.desk.queues import queue_target
from eventbus.dashboard.desk.search import Found, SearchQuery, search
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.links import Links
from eventbus.dashboard.pages.rendering import Renderer
from eventbus.dashboard.problem import Problem, problem_of
from eventbus.dashboard.reading import read_query
from eventbus.errors import EventBusError, StoreError
from eventbus.model.states import JobState

__all__ = ["FindingPage"]


class FindingPage:
    """The search of one dashboard."""

    def __init__(self, desk: Desk, renderer: Renderer) -> None:
        self._desk = desk
        self._renderer = renderer

    async def show(self, request: Request, caller: Caller, links: Links) -> Response:
        """Lead to the flow, the job or the queue of that name; show the form and all that was found
        otherwise.
        """
        query, found, problem = read_query(request, SearchQuery), None, None
        try:
            found = await search(self._desk, caller, {}, query)
        except StoreError:
            raise
        except (Problem, EventBusError) as error:
            problem = error if isinstance(error, Problem) else problem_of(error)
        if found is not None and (place := await self._meant(caller, links, query, found)):
            return Response(status_code=303, headers={"location": place})
        known = await self._desk.queues.read()
        return self._renderer.plain(
            request,
            caller.actor,
            links,
            "search",
            status=200 if problem is None or not query.q else problem.status,
            query=query,
            found=found,
            problem=problem.detail if problem is not None and query.q else "",
            names=[each.queue for each in known.queues if self._desk.sees(caller, queue_target(each.queue))],
            states=get_args(JobState),
        )

    async def _meant(self, caller: Caller, links: Links, query: SearchQuery, found: Found) -> str:
        """Return the page of the one thing that was named; empty if there is not just one."""
        wanted = query.q.strip()
        if len(found.jobs) == 1 and found.jobs[0].id == wanted:
            report, target = await find_job(self._desk, caller, wanted)
            is_flow = self._desk.flows is not None and report.is_root and target.event.startswith("workflow.")
            return links("flows" if is_flow else "jobs", wanted)
        exact = [name for name in found.queues if wanted in (name, name.removeprefix("event."))]
        if exact or (len(found.queues) == 1 and not found.jobs):
            return links("queues", (exact or found.queues)[0])
        return ""
