"""The routes of the pages: each reads at the desk and renders, or posts a form and is sent back."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from eventbus.dashboard.api.routes import Handler
from eventbus.dashboard.api.table import ACTS
from eventbus.dashboard.desk import (
    audit,
    failures,
    history,
    jobs,
    operations,
    queues,
    schedules,
    server,
    workers,
)
from eventbus.dashboard.desk.desk import Change, Desk
from eventbus.dashboard.desk.edits import EditOrder
from eventbus.dashboard.desk.queue_views import QueueView
from eventbus.dashboard.desk.repeats import Ordered
from eventbus.dashboard.desk.rows import Act, NoQuery
from eventbus.dashboard.desk.tail import TailQuery, read_tail
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.links import Links
from eventbus.dashboard.pages.columns import stack
from eventbus.dashboard.pages.events import EventPages, read_typed
from eventbus.dashboard.pages.finding import FindingPage
from eventbus.dashboard.pages.flows import FlowPages
from eventbus.dashboard.pages.rendering import Renderer
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.reading import names_in, read_form, read_query, to_order
from eventbus.model import chance
from eventbus.model.states import FINAL_STATES

__all__ = ["Pages"]

_ROWS = 50
_MOST_QUEUES = 500


class Pages:
    """The pages of one dashboard."""

    def __init__(self, desk: Desk, renderer: Renderer) -> None:
        self._desk = desk
        self._renderer = renderer

    def handlers(self) -> list[tuple[str, str, Handler]]:
        """Return the method, the path and the handler of each route."""
        return [
            ("GET", "/", self._overview),
            ("GET", "/find", FindingPage(self._desk, self._renderer).show),
            ("GET", "/queues/{queue}", self._queue),
            ("GET", "/jobs/{job}", self._job),
            ("GET", "/failures", self._failures),
            ("GET", "/queues/{queue}/bulk", self._bulk),
            ("GET", "/operations", self._operations),
            ("GET", "/operations/{operation}", self._operation),
            ("GET", "/audit", self._audit),
            ("GET", "/workers", self._workers),
            ("GET", "/server", self._server),
            ("GET", "/tail", self._tail),
            ("GET", "/schedules", self._schedules),
            ("GET", "/schedules/{schedule}", self._schedule),
            *EventPages(self._desk, self._renderer).handlers(),
            *FlowPages(self._desk, self._renderer).handlers(),
            *(("POST", act.form, self._poster(act)) for act in ACTS if act.form),
        ]

    async def _overview(self, request: Request, caller: Caller, links: Links) -> Response:
        found = await queues.read_queues(self._desk, caller, {}, NoQuery())
        # The busiest ones, if there are very many: a page of all would be megabytes.
        busiest = sorted(found.queues, key=_busyness, reverse=True)[:_MOST_QUEUES]
        shown = sorted(busiest, key=lambda view: view.queue)
        return self._page(
            request,
            caller,
            links,
            "overview",
            queues=shown,
            counted=found.queues,
            left_out=len(found.queues) - len(shown),
        )

    async def _queue(self, request: Request, caller: Caller, links: Links) -> Response:
        names, query = names_in(request), read_query(request, jobs.JobsQuery, "done")
        view = await queues.read_queue(self._desk, caller, names, NoQuery())
        told = await history.read_history(self._desk, caller, names, history.HistoryQuery())
        state, listed = query.state[0], None
        if "job.read" in view.may:
            wanted = jobs.JobsQuery(state=[state], limit=min(query.limit, 200), cursor=query.cursor)
            listed = await jobs.read_jobs(self._desk, caller, names, wanted)
        return self._page(
            request,
            caller,
            links,
            "queue",
            queue=view,
            told=told,
            columns=stack(told),
            listed=listed,
            actions=operations.actions_for(self._desk, caller, view.queue, state),
            state=state,
            is_first=not query.cursor,
        )

    async def _job(self, request: Request, caller: Caller, links: Links) -> Response:
        view = await jobs.read_job(self._desk, caller, names_in(request), None)
        is_open = view.job.state not in FINAL_STATES
        return self._page(
            request,
            caller,
            links,
            "job",
            view=view,
            job=view.job,
            is_open=is_open,
            is_flow=view.job.queue.startswith("workflow."),
        )

    async def _failures(self, request: Request, caller: Caller, links: Links) -> Response:
        found = await failures.read_failures(self._desk, caller, {}, NoQuery())
        return self._page(request, caller, links, "failures", found=found)

    async def _bulk(self, request: Request, caller: Caller, links: Links) -> Response:
        """Show what an operation would be about, and ask."""
        query = read_query(request, operations.PreviewQuery, "job")
        named = request.query_params.getlist("job")  # ticked ones count, whatever else is said
        if named:
            query = operations.PreviewQuery(action=query.action, jobs=named)
        path = names_in(request)
        found = await operations.preview_operation(self._desk, caller, path, query)
        return self._plain(
            request,
            caller,
            links,
            "bulk",
            queue=path["queue"],
            query=query,
            found=found,
            operation_id=chance.token(8),
        )

    async def _operations(self, request: Request, caller: Caller, links: Links) -> Response:
        found = await operations.read_operations(self._desk, caller, {}, NoQuery())
        return self._page(request, caller, links, "operations", operations=found.operations)

    async def _operation(self, request: Request, caller: Caller, links: Links) -> Response:
        view = await operations.read_operation(self._desk, caller, names_in(request), NoQuery())
        return self._page(request, caller, links, "operation", view=view, operation=view.operation)

    async def _audit(self, request: Request, caller: Caller, links: Links) -> Response:
        query = read_query(request, audit.AuditQuery, "done")
        page = await audit.read_audit(self._desk, caller, {}, query)
        return self._page(request, caller, links, "audit", page=page, query=query)

    async def _workers(self, request: Request, caller: Caller, links: Links) -> Response:
        found = await workers.read_workers(self._desk, caller, {}, NoQuery())
        return self._page(request, caller, links, "workers", workers=found.workers)

    async def _server(self, request: Request, caller: Caller, links: Links) -> Response:
        view = await server.read_server(self._desk, caller, {}, NoQuery())
        return self._page(request, caller, links, "server", view=view, server=view.server)

    async def _tail(self, request: Request, caller: Caller, links: Links) -> Response:
        query = read_query(request, TailQuery)
        found = await read_tail(self._desk, caller, query)
        return self._plain(request, caller, links, "tail", found=found, query=query)

    async def _schedules(self, request: Request, caller: Caller, links: Links) -> Response:
        query = read_query(request, schedules.SchedulesQuery, "done")
        found = await schedules.read_schedules(self._desk, caller, {}, query)
        return self._page(
            request, caller, links, "schedules", schedules=found.schedules, cursor=found.cursor, query=query
        )

    async def _schedule(self, request: Request, caller: Caller, links: Links) -> Response:
        view = await schedules.read_schedule(self._desk, caller, names_in(request), None)
        return self._page(request, caller, links, "schedule", view=view, schedule=view.schedule)

    def _poster(self, act: Act) -> Handler:
        async def post(request: Request, caller: Caller, links: Links) -> Response:
            return await self._post(act, request, caller, links)

        return post

    async def _post(self, act: Act, request: Request, caller: Caller, links: Links) -> Response:
        names, form = names_in(request), await read_form(request)
        once, typed = form.pop("_once", ""), form.pop("_name", "")
        name = next(iter(names.values()))  # of what is acted on; another one says what of it
        if act.is_final and typed != name:
            raise Problem(422, f"type {name} to confirm; nothing was changed")
        order = to_order(form, act.order, is_text=True)
        if isinstance(order, EditOrder):
            order = msgspec.structs.replace(order, payload=read_typed(form.get("payload", "")))

        async def do() -> Change:
            return await act.act(self._desk, caller, names, order)

        place = (caller.actor.name, *sorted(caller.actor.roles), "form", act.form, *names.values())
        ordered = Ordered.of(place, once if act.is_kept else "", order)
        done = await self._desk.once(caller, ordered, do)
        if done.operation:
            return _redirect(links("operations", done.operation))
        kind = act.form.split("/")[1]
        if done.value is not None:
            return self._plain(request, caller, links, "revealed", job_id=name, value=done.value)
        result = "changed" if done.changed else "unchanged"
        place = links(kind, name, done=result)
        if act.is_final:  # what it was about is gone
            place = links(*([] if kind == "jobs" else [kind]), done=result)
        return _redirect(place)

    def _page(self, request: Request, caller: Caller, links: Links, name: str, **values: Any) -> Response:
        return self._renderer.page(request, caller.actor, links, name, **values)

    def _plain(self, request: Request, caller: Caller, links: Links, name: str, **values: Any) -> Response:
        return self._renderer.plain(request, caller.actor, links, name, **values)


def _busyness(view: QueueView) -> tuple[int, ...]:
    """Return by what queues are shown first where there is no room for all: what waits or failed.

    Then what runs.
    """
    counts = view.counts
    return (counts["waiting"] + counts["failed"] + counts["parked"], counts["active"] + counts["delayed"])


def _redirect(url: str) -> Response:
    return Response(status_code=303, headers={"location": url})
