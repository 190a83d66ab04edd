"""The pages of events: one event, and the form that emits it."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.responses import Response

from eventbus.dashboard.desk.desk import Reason
from eventbus.dashboard.desk.events.catalog import read_event
from eventbus.dashboard.desk.events.emissions import EmitOrder, emit_event
from eventbus.dashboard.desk.events.schemas import fields_of, payload_of
from eventbus.dashboard.desk.repeats import Ordered
from eventbus.dashboard.desk.rows import NoQuery
from eventbus.dashboard.pages.rendering import Page, Visit
from eventbus.dashboard.reading import names_in, read_form, read_json, to_order


class EmitForm(msgspec.Struct, frozen=True):
    """What the form says besides the payload; see `EmitOrder`."""

    delay: str = ""
    priority: int = 0
    idempotency_key: str = ""
    reason: Reason = ""


async def _show(visit: Visit) -> Response:
    event = await read_event(visit.desk, visit.caller, names_in(visit.request), NoQuery())
    return visit.page("event", event=event, fields=fields_of(event.payload_schema))


async def _emit(visit: Visit) -> Response:
    """Emit what a form holds, once for each form that was shown, and lead to the job."""
    desk, caller = visit.desk, visit.caller
    names, form = names_in(visit.request), await read_form(visit.request)
    event = await read_event(desk, caller, names, NoQuery())
    once, fields = form.pop("_once", ""), fields_of(event.payload_schema)
    payload = read_typed(form.pop("payload", "")) if fields is None else payload_of(fields, form)
    options = msgspec.structs.asdict(to_order(form, EmitForm, is_text=True))
    order = EmitOrder(event=event.name, payload=payload, **options)
    ordered = Ordered.of(caller.actor, ("emit", event.name), once, order)
    done = await desk.once(caller, ordered, partial(emit_event, desk, caller, {}, order))
    return visit.lead("jobs", done.job_id, done="changed" if done.changed else "unchanged")


PAGES: tuple[tuple[str, str, Page], ...] = (
    ("GET", "/events/{event}", _show),
    ("POST", "/events/{event}/emit", _emit),
)


def read_typed(text: str) -> object:
    """Return the JSON that somebody typed; nothing stands for null. Raises Problem, 422."""
    return read_json(text.strip() or "null", "the payload")
