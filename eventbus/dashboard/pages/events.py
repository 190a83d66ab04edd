"""The pages of events: what there is, one event, and the form that emits it."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from eventbus.dashboard.api.routes import Handler
from eventbus.dashboard.desk.desk import Desk, Reason
from eventbus.dashboard.desk.events.catalog import read_event, read_events
from eventbus.dashboard.desk.events.emissions import EmitOrder, emit_event
from eventbus.dashboard.desk.events.schemas import fields_of, payload_of
from eventbus.dashboard.desk.repeats import Ordered
from eventbus.dashboard.desk.rows import NoQuery
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.links import Links
from eventbus.dashboard.pages.rendering import Renderer
from eventbus.dashboard.reading import names_in, read_form, read_json, to_order

__all__ = ["EventPages", "read_typed"]


class EmitForm(msgspec.Struct, frozen=True):
    """What the form says besides the payload; see `EmitOrder`."""

    delay: str = ""
    priority: int = 0
    idempotency_key: str = ""
    reason: Reason = ""


class EventPages:
    """The pages of events of one dashboard."""

    def __init__(self, desk: Desk, renderer: Renderer) -> None:
        self._desk = desk
        self._renderer = renderer

    def handlers(self) -> list[tuple[str, str, Handler]]:
        """Return the method, the path and the handler of each route."""
        return [
            ("GET", "/events", self._list),
            ("GET", "/events/{event}", self._show),
            ("POST", "/events/{event}/emit", self._emit),
        ]

    async def _list(self, request: Request, caller: Caller, links: Links) -> Response:
        found = await read_events(self._desk, caller, {}, NoQuery())
        return self._renderer.page(request, caller.actor, links, "events", events=found.events)

    async def _show(self, request: Request, caller: Caller, links: Links) -> Response:
        event = await read_event(self._desk, caller, names_in(request), NoQuery())
        fields = fields_of(event.payload_schema)
        return self._renderer.page(request, caller.actor, links, "event", event=event, fields=fields)

    async def _emit(self, request: Request, caller: Caller, links: Links) -> Response:
        """Emit what a form holds, once for each form that was shown, and lead to the job."""
        names, form = names_in(request), await read_form(request)
        event = await read_event(self._desk, caller, names, NoQuery())
        once, fields = form.pop("_once", ""), fields_of(event.payload_schema)
        payload = read_typed(form.pop("payload", "")) if fields is None else payload_of(fields, form)
        options = msgspec.structs.asdict(to_order(form, EmitForm, is_text=True))
        order = EmitOrder(event=event.name, payload=payload, **options)

        place = (caller.actor.name, *sorted(caller.actor.roles), "emit", event.name)
        done = await self._desk.once(
            caller, Ordered.of(place, once, order), partial(emit_event, self._desk, caller, {}, order)
        )
        result = "changed" if done.changed else "unchanged"
        return Response(status_code=303, headers={"location": links("jobs", done.job_id, done=result)})


def read_typed(text: str) -> object:
    """Return the JSON that somebody typed; nothing stands for null. Raises Problem, 422."""
    return read_json(text.strip() or "null", "the payload")
