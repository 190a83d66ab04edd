"""Emissions: a caller emits an event that exists, with a payload that fits it.

What must always hold: an event that nobody serves or defines is refused, because it is a slip of the pen; a
payload that does not fit is refused before anything is sent; the key of an emission is kept by the server, so
that it is one job in spite of a restart.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from eventbus.dashboard.desk.desk import ActionResult, Desk
from eventbus.dashboard.desk.events.catalog import read_event
from eventbus.dashboard.desk.jobs import read_job
from eventbus.dashboard.desk.queues import queue_target
from eventbus.dashboard.desk.rows import Act, BareOrder, NoQuery
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.problem import Problem
from eventbus.emit.emission import Emission
from eventbus.errors import EventBusError, PayloadError, StoreError, UnknownJob
from eventbus.model.codec import Codec
from eventbus.model.durations import seconds
from eventbus.model.event import Event
from eventbus.model.names import queue_name
from eventbus.model.redaction.redacting import find_hidden
from eventbus.settings.keywords import EmitKeywords

_LONGEST_WAIT = 8.0
_SENT_WITHIN = 5.0


class EmitOrder(BareOrder, frozen=True):
    """An emission. `delay` is such as `90s`; with `wait`, such as `5s`, the answer has what became of the job
    by then.

    `idempotency_key` may also come as the header `Idempotency-Key`: emissions of an event with one key are
    one job.
    """

    event: str
    payload: Any = None
    delay: str = ""
    priority: int = 0
    idempotency_key: str = ""
    wait: str = ""


class WaitQuery(msgspec.Struct, frozen=True):
    """`wait` of an emission may also stand in the query."""

    wait: str = ""


async def emit_event(desk: Desk, caller: Caller, _path: dict[str, str], order: EmitOrder) -> ActionResult:
    """Emit an event. Raises Problem: 404 for one that is not there, 422 for a payload that does not fit."""
    await read_event(desk, caller, {"event": order.event}, NoQuery())
    if (place := find_hidden(order.payload)) is not None:
        raise PayloadError(
            f"the payload holds at {place} what a page shows instead of a hidden value; "
            "give the value itself",
            path=place,
        )
    event = desk.provider.inspector.events.get(order.event)
    payload = typed_payload(event or Event(order.event), order.payload, desk.provider.settings.max_payload)
    wait = _read_wait(order.wait)
    is_due = wait > (seconds(order.delay, setting="delay") if order.delay else 0.0)  # while the caller waits
    options = EmitKeywords(reply=is_due, priority=order.priority)
    if is_due:
        options["reply_timeout"] = wait
    if order.delay:
        options["delay"] = order.delay
    if order.idempotency_key:
        options["idempotency_key"] = order.idempotency_key

    async def emit() -> ActionResult:
        emission: Emission[Any] = desk.provider.emit(event or order.event, payload, **options)
        async with asyncio.timeout(_SENT_WITHIN):
            await emission.enqueued()
        note = "it joined a job of the same key" if emission.joined else "it is emitted"
        if emission.groups == 0:
            note = "nobody took it: the event has no default handler, and no group yet"
        value = await _outcome(desk, caller, emission, wait if is_due else 0.0) if wait else None
        return ActionResult(changed=not emission.joined, note=note, job_id=emission.job_id, value=value)

    target = queue_target(queue_name(order.event))
    return await desk.act(caller, "event.emit", target, emit, reason=order.reason)


def typed_payload(event: Event[Any, Any], given: Any, max_bytes: int) -> Any:
    """Return a payload of JSON in the type of its event. Raises PayloadError, which names the field."""
    codec = Codec(event.payload, role="payload", owner=event.name, max_bytes=max_bytes)
    return codec.decode(msgspec.json.encode(given))


async def _outcome(desk: Desk, caller: Caller, emission: Emission[Any], wait: float) -> dict[str, Any]:
    """Wait for the job, and return what became of it, as its page shows it."""
    try:
        if wait:
            async with asyncio.timeout(
                wait
            ):  # its own timeout begins when the job is due, which may be later
                await emission
    except StoreError:
        raise
    except (EventBusError, TimeoutError):
        pass  # its report has the error, without what is hidden, or the job is still open
    try:
        view = await read_job(desk, caller, {"job": emission.job_id}, None)
    except (UnknownJob, Problem):
        return {"state": "unknown"}  # kept no longer, of groups alone, or not to be seen
    return {"state": view.job.state, "result": view.job.result, "error": view.job.error}


def _read_wait(text: str) -> float:
    wait = seconds(text, setting="wait") if text else 0.0
    if wait > _LONGEST_WAIT:
        raise Problem(422, f"expected to wait {_LONGEST_WAIT:g}s at most, got: {text}")
    return wait


ACTS = (
    Act(
        "POST",
        "/emissions",
        "",
        "Emit an event; with `wait` the answer has what became of it.",
        EmitOrder,
        emit_event,
    ),
)
