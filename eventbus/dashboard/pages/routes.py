"""The routes of the pages: each reads at the desk and renders, or posts a form and is sent back."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.responses import Response

from eventbus.dashboard.api.routes import Handler
from eventbus.dashboard.api.table import ACTS, READS
from eventbus.dashboard.desk import history, jobs, operations, queues
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.edits import EditOrder
from eventbus.dashboard.desk.queue_views import QueueView
from eventbus.dashboard.desk.repeats import Ordered
from eventbus.dashboard.desk.rows import Act, NoQuery, Read
from eventbus.dashboard.desk.tail import TailQuery, read_tail
from eventbus.dashboard.pages import events, finding, flows
from eventbus.dashboard.pages.columns import stack
from eventbus.dashboard.pages.events import read_typed
from eventbus.dashboard.pages.rendering import Page, Renderer, Visit
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.reading import names_in, read_form, read_query, to_order
from eventbus.model import chance
from eventbus.model.states import FINAL_STATES

_MOST_QUEUES = 500


async def _overview(visit: Visit) -> Response:
    found = await queues.read_queues(visit.desk, visit.caller, {}, NoQuery())
    # The busiest ones, if there are very many: a page of all would be megabytes.
    busiest = sorted(found.queues, key=_busyness, reverse=True)[:_MOST_QUEUES]
    shown = sorted(busiest, key=lambda view: view.queue)
    left_out = len(found.queues) - len(shown)
    return visit.page("overview", queues=shown, counted=found.queues, left_out=left_out)


async def _queue(visit: Visit) -> Response:
    desk, caller = visit.desk, visit.caller
    names, query = names_in(visit.request), read_query(visit.request, jobs.JobsQuery, "done")
    view = await queues.read_queue(desk, caller, names, NoQuery())
    told = await history.read_history(desk, caller, names, history.HistoryQuery())
    state, listed = query.state[0], None
    if "job.read" in view.may:
        wanted = jobs.JobsQuery(state=[state], limit=min(query.limit, 200), cursor=query.cursor)
        listed = await jobs.read_jobs(desk, caller, names, wanted)
    return visit.page(
        "queue",
        queue=view,
        told=told,
        columns=stack(told),
        listed=listed,
        actions=operations.actions_for(desk, caller, view.queue, state),
        state=state,
        is_first=not query.cursor,
    )


async def _job(visit: Visit) -> Response:
    view = await jobs.read_job(visit.desk, visit.caller, names_in(visit.request), None)
    is_open, is_flow = view.job.state not in FINAL_STATES, view.job.queue.startswith("workflow.")
    return visit.page("job", view=view, job=view.job, is_open=is_open, is_flow=is_flow)


async def _bulk(visit: Visit) -> Response:
    """Show what an operation would be about, and ask."""
    query = read_query(visit.request, operations.PreviewQuery, "job")
    named = visit.request.query_params.getlist("job")  # ticked ones count, whatever else is said
    if named:
        query = operations.PreviewQuery(action=query.action, jobs=named)
    path = names_in(visit.request)
    found = await operations.preview_operation(visit.desk, visit.caller, path, query)
    key = chance.token(8)
    return visit.plain("bulk", queue=path["queue"], query=query, found=found, operation_id=key)


async def _tail(visit: Visit) -> Response:
    query = read_query(visit.request, TailQuery)
    found = await read_tail(visit.desk, visit.caller, query)
    return visit.plain("tail", found=found, query=query)


_PAGES: tuple[tuple[str, str, Page], ...] = (
    ("GET", "/", _overview),
    ("GET", "/queues/{queue}", _queue),
    ("GET", "/jobs/{job}", _job),
    ("GET", "/queues/{queue}/bulk", _bulk),
    ("GET", "/tail", _tail),
    *finding.PAGES,
    *events.PAGES,
    *flows.PAGES,
)
_SHOWN = {
    "/failures": "failures",
    "/operations": "operations",
    "/operations/{operation}": "operation",
    "/audit": "audit",
    "/events": "events",
    "/workers": "workers",
    "/server": "server",
    "/schedules": "schedules",
    "/schedules/{schedule}": "schedule",
}
"""The template of what a page shows as the API reads it, at the same path. It has the fields of that."""


def _shower(row: Read) -> Page:
    async def show(visit: Visit) -> Response:
        query = NoQuery() if row.query is NoQuery else read_query(visit.request, row.query, "done")
        view = await row.read(visit.desk, visit.caller, names_in(visit.request), query)
        return visit.page(_SHOWN[row.path], view=view, query=query, **msgspec.structs.asdict(view))

    return show


def _poster(act: Act) -> Page:
    async def post(visit: Visit) -> Response:
        desk, caller = visit.desk, visit.caller
        names, form = names_in(visit.request), await read_form(visit.request)
        once, typed = form.pop("_once", ""), form.pop("_name", "")
        name = next(iter(names.values()))  # of what is acted on; another one says what of it
        if act.is_final and typed != name:
            raise Problem(422, f"type {name} to confirm; nothing was changed")
        order = to_order(form, act.order, is_text=True)
        if isinstance(order, EditOrder):
            order = msgspec.structs.replace(order, payload=read_typed(form.get("payload", "")))
        place = ("form", act.form, *names.values())
        ordered = Ordered.of(caller.actor, place, once if act.is_kept else "", order)
        done = await desk.once(caller, ordered, partial(act.act, desk, caller, names, order))
        if done.operation:
            return visit.lead("operations", done.operation)
        if done.value is not None:
            return visit.plain("revealed", job_id=name, value=done.value)
        kind, result = act.form.split("/")[1], "changed" if done.changed else "unchanged"
        if act.is_final:  # what it was about is gone
            return visit.lead(*([] if kind == "jobs" else [kind]), done=result)
        return visit.lead(kind, name, done=result)

    return post


def page_handlers(desk: Desk, renderer: Renderer) -> list[tuple[str, str, Handler]]:
    """Return the method, the path and the handler of each route."""

    def handler(page: Page) -> Handler:
        return lambda request, caller, links: page(Visit(desk, renderer, request, caller, links))

    pages = [
        *_PAGES,
        *(("GET", row.path, _shower(row)) for row in READS if row.path in _SHOWN),
        *(("POST", act.form, _poster(act)) for act in ACTS if act.form),
    ]
    return [(method, path, handler(page)) for method, path, page in pages]


def _busyness(view: QueueView) -> tuple[int, ...]:
    """Return by what queues are shown first where there is no room for all: what waits or failed.

    Then what runs.
    """
    counts = view.counts
    return (counts["waiting"] + counts["failed"] + counts["parked"], counts["active"] + counts["delayed"])
