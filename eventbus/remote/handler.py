"""Handlers that run in another process, as the worker calls them.

What must hold: what a process reports counts as if the handler had raised or returned it here;
the payload and the result are read by the process alone, unless a middleware asks for them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.engine.processes import Processes
from eventbus.failure import revive
from eventbus.logs import get_logger
from eventbus.remote.assignment import Assignment, LogNote, Report, Task
from eventbus.route import Route

__all__ = ["Recorded", "RemoteHandler", "log_note", "recorded"]

_NOTE = "__eventbus_recorded__"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Report).decode
_decode_note = msgspec.json.Decoder(LogNote).decode


class Recorded(msgspec.Struct, frozen=True):
    """What the process recorded of an error: a record of `failure`, and if no retry can help."""

    text: str
    is_final: bool


def recorded(error: BaseException) -> Recorded | None:
    """Return the record of an error that came from a process, None for one of this process."""
    return getattr(error, _NOTE, None)


def log_note(data: bytes) -> None:
    """Log what a process logged, as this process logs."""
    note = _decode_note(data)
    logger = get_logger(note.logger)
    getattr(logger, note.level, logger.info)(note.event, **note.fields)


class RemoteHandler:
    """One handler, run in the processes of a pool."""

    def __init__(self, task: Task, route: Route, processes: Processes) -> None:
        self._task = task
        self._route = route
        self._processes = processes

    async def run(self, payload: bytes | memoryview, facts: dict[str, Any]) -> bytes:
        """Run it with a payload as JSON; return its result as JSON.

        Raises the declared error or a HandlerError that stands for what it raised, and ProcessDied.
        """
        request = _encode(Assignment(self._task, msgspec.Raw(payload), facts))
        report = _decode(await self._processes.run(request))
        if not report.error:
            return bytes(report.result)
        event = self._route.event
        error = revive(
            "failed", report.error, event=event.name, job_id=facts["job_id"], declared=event.errors
        )
        setattr(error, _NOTE, Recorded(report.error, report.is_final))
        raise error

    async def call(self, payload: Any, facts: dict[str, Any]) -> Any:
        """Run it with a payload as a value; return its result as one."""
        result = await self.run(self._route.payload.encode(payload), facts)
        return self._route.result.decode(result) if self._task.replies else None
