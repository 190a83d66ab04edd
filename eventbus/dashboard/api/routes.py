"""The routes of the API: JSON in, JSON out, problems for errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from eventbus._version import __version__
from eventbus.dashboard.api.openapi import describe
from eventbus.dashboard.api.stream import answer_stream
from eventbus.dashboard.api.table import ACTS, READS
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.edits import EditOrder
from eventbus.dashboard.desk.events.emissions import EmitOrder, WaitQuery
from eventbus.dashboard.desk.flows.listing import FlowList
from eventbus.dashboard.desk.jobs import JobPage
from eventbus.dashboard.desk.repeats import Ordered
from eventbus.dashboard.desk.rows import Act, NoQuery, Read
from eventbus.dashboard.desk.schedules import ScheduleList
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import ACTIONS, Target
from eventbus.dashboard.links import Links
from eventbus.dashboard.reading import names_in, read_order, read_query

API = "/api/v1"

Handler: TypeAlias = Callable[[Request, Caller, Links], Awaitable[Response]]


def api_handlers(desk: Desk) -> list[tuple[str, str, Handler]]:
    """Return the method, the path and the handler of each route."""
    described = msgspec.json.encode(describe())

    async def index(request: Request, caller: Caller, links: Links) -> Response:
        read_query(request, NoQuery)
        api = links("api", "v1")
        target = Target("queue")
        may = {action: desk.may(caller, action, target) for action in ACTIONS}  # type: ignore[arg-type]
        names = [
            "queues",
            "events",
            "failures",
            "operations",
            "schedules",
            "workers",
            "audit",
            "server",
            *(["flows", "workflows"] if desk.flows is not None else []),
        ]
        return _json(
            {
                "version": __version__,
                "actor": caller.actor.name,
                "is_read_only": desk.rights.is_read_only,
                "may": may,
                "links": {name: f"{api}/{name}" for name in [*names, "stream", "openapi.json"]},
            }
        )

    async def openapi(_request: Request, _caller: Caller, _links: Links) -> Response:
        return Response(described, media_type="application/json")

    return [
        ("GET", API, index),
        ("GET", f"{API}/openapi.json", openapi),
        ("GET", f"{API}/stream", partial(answer_stream, desk)),
        *(("GET", API + each.path, _reader(desk, each)) for each in READS),
        *((each.method, API + each.path, _actor(desk, each)) for each in ACTS),
    ]


def _reader(desk: Desk, row: Read) -> Handler:
    async def answer(request: Request, caller: Caller, links: Links) -> Response:
        value = await row.read(desk, caller, names_in(request), read_query(request, row.query))
        headers: dict[str, str] = {}
        if isinstance(value, (JobPage, FlowList, ScheduleList)) and value.cursor is not None:
            given = request.query_params
            query = {**{name: given.getlist(name) for name in given}, "cursor": value.cursor}
            place = ("queues", value.queue, "jobs") if isinstance(value, JobPage) else (row.path.strip("/"),)
            headers["link"] = f'<{links("api", "v1", *place, **query)}>; rel="next"'
        return _json(value, headers)

    return answer


def _actor(desk: Desk, row: Act) -> Handler:
    async def answer(request: Request, caller: Caller, _links: Links) -> Response:
        names, order = names_in(request), await read_order(request, row.order)
        order = _complete(order, request)

        async def act() -> Any:
            return await row.act(desk, caller, names, order)

        place = (row.method, row.path, *names.values())
        waits = isinstance(order, EmitOrder) and bool(order.wait)
        told = msgspec.structs.replace(order, wait="") if isinstance(order, EmitOrder) else order
        ordered = Ordered.of(caller.actor, place, request.headers.get("idempotency-key", ""), told)
        # Whoever waits asks what became of the job by now; the server keeps the key of the emission.
        if not row.is_kept or waits:
            desk.repeats.check(ordered)
            return _json(await act())
        return _json(await desk.once(caller, ordered, act))

    return answer


def _complete(order: Any, request: Request) -> Any:
    """Add what the request says outside of its body. Raises Problem for a query that says anything else."""
    if isinstance(order, EmitOrder):
        wait = order.wait or read_query(request, WaitQuery).wait
        key = order.idempotency_key or request.headers.get("idempotency-key", "")
        return msgspec.structs.replace(order, idempotency_key=key, wait=wait)
    read_query(request, NoQuery)
    if isinstance(order, EditOrder):
        return msgspec.structs.replace(order, revision=order.revision or request.headers.get("if-match", ""))
    return order


def _json(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value, enc_hook=str), headers=headers, media_type="application/json")
