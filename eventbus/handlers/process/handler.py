"""Remote handlers: the worker's side of a handler that runs in another process.

Not here: the processes (`runtime.process_pool`), and the program that runs in them (`child`).

What must always hold: a result or an error that a process reports counts as if the handler had returned or
raised it here; only the process decodes the payload and encodes the result, unless there is middleware.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import msgspec

from eventbus.emit.route import Route
from eventbus.handlers.attempt import Attempt
from eventbus.handlers.middleware import encode_passed_on
from eventbus.handlers.process.attendant import Attendant
from eventbus.handlers.process.messages import HandlerSpec, LogNote, Report, Request
from eventbus.handlers.process.progress import ProgressRelay
from eventbus.model.later import Later
from eventbus.runtime.process_pool import ProcessPool
from eventbus.telemetry.error_groups import mark_leaves
from eventbus.telemetry.failure import Recorded, mark_recorded, revive
from eventbus.telemetry.log_context import trace_facts
from eventbus.telemetry.logging import get_logger

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Report).decode
_decode_note = msgspec.json.Decoder(LogNote).decode


def log_note(data: bytes) -> None:
    """Log, by the rules of this process, an event that another process logged.

    Raises msgspec's errors if `data` cannot be read.
    """
    note = _decode_note(data)
    logger = get_logger(note.logger)
    try:
        getattr(logger, note.level, logger.info)(note.event, **note.fields)
    except Exception:  # noqa: BLE001  (from the program's own logging, which must not fail the job)
        traceback.print_exc()


class RemoteHandler:
    """One handler that runs in the processes of a process pool."""

    def __init__(self, task: HandlerSpec, route: Route, processes: ProcessPool) -> None:
        self._task = task
        self._route = route
        self._processes = processes

    async def run(
        self, payload: bytes | memoryview, facts: dict[str, Any], baggage: str, own: Attempt
    ) -> bytes:
        """Run the handler on a payload in JSON and return its result in JSON.

        `facts` become its `ProcessContext`, `baggage` its OpenTelemetry baggage; `own` does what it asks for.
        Raises the declared error or a HandlerError in place of the handler's own error, and ProcessDied if
        the process ended.
        """
        request = make_request(self._task, payload, facts, baggage, own.max_saved)
        return await run_in_process(
            self._processes, request, own, facts["job_id"], self._route.name, self._route.event.errors
        )

    async def call(self, payload: Any, facts: dict[str, Any], baggage: str, own: Attempt) -> Any:
        """Run the handler on a payload that a middleware passed on, and return its result, both as Python
        values.

        Raises PayloadError if the payload does not fit the event, and the errors of `run`. The result is None
        if the handler's group does not answer.
        """
        result = await self.run(encode_passed_on(self._route.payload, payload), facts, baggage, own)
        return self._route.result.decode(result) if self._task.replies else None


def make_request(
    task: HandlerSpec, payload: bytes | memoryview, facts: dict[str, Any], baggage: str, max_saved: int
) -> bytes:
    """Return the message that asks a process to run a function on a payload in JSON."""
    span_id = trace_facts("", job_id=facts["job_id"]).get("span_id", "")
    return _encode(Request(task, msgspec.Raw(payload), facts, span_id, baggage, max_saved))


async def run_in_process(
    processes: ProcessPool,
    request: bytes,
    own: Attempt,
    job_id: str,
    event: str,
    declared: Sequence[type[Exception]],
) -> bytes:
    """Send a request to a process, and return the result in JSON. `own` does what the process asks for.

    Raises an error of `declared` or a HandlerError in place of the function's own error, with its record,
    Later, and ProcessDied.
    """
    async with ProgressRelay(own.tell) as relay, Attendant(own) as attendant:
        report: Report = await processes.run(request, _decode, relay.put, attendant)
    if report.later is not None:
        raise Later(report.later)
    if not report.error:
        return bytes(report.result)
    error = revive("failed", report.error, event=event, job_id=job_id, declared=declared)
    mark_recorded(error, Recorded(report.error, report.is_final, tuple(report.kinds), report.is_awaited))
    if report.leaves:
        leaves = [Recorded("", leaf.is_final, leaf.kinds, leaf.is_awaited) for leaf in report.leaves]
        mark_leaves(error, leaves)
    raise error
