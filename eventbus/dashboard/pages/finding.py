"""The page of the search: the box in the head of each page leads here, and from here to what was meant if it
is one thing.
"""

from __future__ import annotations

from typing import get_args

from starlette.responses import Response

from eventbus.dashboard.desk.jobs import find_job
from eventbus.dashboard.desk.queues import queue_target
from eventbus.dashboard.desk.search import Found, SearchQuery, search
from eventbus.dashboard.pages.rendering import Page, Visit
from eventbus.dashboard.problem import Problem, problem_of
from eventbus.dashboard.reading import read_query
from eventbus.errors import EventBusError, StoreError
from eventbus.model.states import JobState


async def _show(visit: Visit) -> Response:
    """Lead to the flow, the job or the queue of that name; show the form and all that was found otherwise."""
    desk, caller = visit.desk, visit.caller
    query, found, problem = read_query(visit.request, SearchQuery), None, None
    try:
        found = await search(desk, caller, {}, query)
    except StoreError:
        raise
    except (Problem, EventBusError) as error:
        problem = error if isinstance(error, Problem) else problem_of(error)
    if found is not None and (place := await _meant(visit, query, found)):
        return visit.lead(*place)
    known = await desk.queues.read()
    return visit.plain(
        "search",
        status=200 if problem is None or not query.q else problem.status,
        query=query,
        found=found,
        problem=problem.detail if problem is not None and query.q else "",
        names=[each.queue for each in known.queues if desk.sees(caller, queue_target(each.queue))],
        states=get_args(JobState),
    )


async def _meant(visit: Visit, query: SearchQuery, found: Found) -> tuple[str, ...]:
    """Return the place of the one thing that was named; nothing if there is not just one."""
    wanted = query.q.strip()
    if len(found.jobs) == 1 and found.jobs[0].id == wanted:
        report, target = await find_job(visit.desk, visit.caller, wanted)
        is_flow = visit.desk.flows is not None and report.is_root and target.event.startswith("workflow.")
        return "flows" if is_flow else "jobs", wanted
    exact = [name for name in found.queues if wanted in (name, name.removeprefix("event."))]
    if exact or (len(found.queues) == 1 and not found.jobs):
        return "queues", (exact or found.queues)[0]
    return ()


PAGES: tuple[tuple[str, str, Page], ...] = (("GET", "/find", _show),)
