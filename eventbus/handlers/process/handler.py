"""Remote handlers: the worker's side of a handler that runs in another process.

Not here: the processes (`runtime.process_pool`), and the program that runs in them (`child`).

What must always hold: a result or an error that a process reports counts as if the handler had returned or raised
it here; only the process decodes the payload and encodes the result, unless there is middleware.
"""

from __future__ import annotations

import traceback
from typing import Any

import msgspec

from eventbus.emit.route import Route
from eventbus.handlers.middleware import encode_passed_on
from eventbus.handlers.process.messages import HandlerSpec, LogNote, Report, Request
from eventbus.runtime.process_pool import ProcessPool
from eventbus.telemetry.failure import revive
from eventbus.telemetry.log_context import trace_facts
from eventbus.telemetry.logging import get_logger

__all__ = ["Recorded", "RemoteHandler", "log_note", "recorded"]

_NOTE = "__eventbus_recorded__"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Report).decode
_decode_note = msgspec.json.Decoder(LogNote).decode


class Recorded(msgspec.Struct, frozen=True):
    """The record of an error that a process reported. `text` is JSON, see `telemetry.failure`.

    `is_final` says that no retry can help.
    """

    text: str
    is_final: bool


def recorded(error: BaseException) -> Recorded | None:
    """Return the record of an error that came from another process, or None if it was raised in this one."""
    return getattr(error, _NOTE, None)


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

    async def run(self, payload: bytes | memoryview, facts: dict[str, Any], baggage: str = "") -> bytes:
        """Run the handler on a payload in JSON and return its result in JSON.

        `facts` become its `JobFacts`, `baggage` its OpenTelemetry baggage. Raises the declared error or a HandlerError
        in place of the handler's own error, and ProcessDied if the process ended.
        """
        span_id = trace_facts("", job_id=facts["job_id"]).get("span_id", "")
        request = _encode(Request(self._task, msgspec.Raw(payload), facts, span_id, baggage))
        report: Report = await self._processes.run(request, _decode)
        if not report.error:
            return bytes(report.result)
        event = self._route.event
        error = revive(
            "failed", report.error, event=event.name, job_id=facts["job_id"], declared=event.errors
        )
        setattr(error, _NOTE, Recorded(report.error, report.is_final))
        raise error

    async def call(self, payload: Any, facts: dict[str, Any], baggage: str = "") -> Any:
        """Run the handler on a payload that a middleware passed on, and return its result, both as Python values.

        Raises PayloadError if the payload does not fit the event, and the errors of `run`. The result is None if the
        handler's group does not answer.
        """
        result = await self.run(encode_passed_on(self._route.payload, payload), facts, baggage)
        return self._route.result.decode(result) if self._task.replies else None
