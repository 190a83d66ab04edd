"""Calls of functions in other processes, for systems on top of the event bus.

Not here: how many calls run at a time; who calls has a place of the pool (`handlers.worker_pools`).

What must always hold: only names and JSON travel.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventbus.handlers.attempt import Attempt
from eventbus.handlers.process.handler import make_request, run_in_process
from eventbus.handlers.process.import_path import ImportPath
from eventbus.handlers.process.messages import HandlerSpec
from eventbus.model.names import DEFAULT_GROUP
from eventbus.runtime.process_pool import ProcessPool


class ProcessCalls:
    """Calls of plain functions in the processes of one worker."""

    def __init__(self, processes: ProcessPool) -> None:
        self._processes = processes

    async def run(
        self,
        function: ImportPath,
        payload: Mapping[str, Any],
        *,
        name: str,
        job_id: str,
        attempt: int,
        own: Attempt,
        correlation_id: str = "",
        meta: Mapping[str, Any] | None = None,
        traceparent: str = "",
        baggage: str = "",
        errors_place: ImportPath | None = None,
        declared: Sequence[type[Exception]] = (),
    ) -> Any:
        """Call `function(payload, ctx=ProcessContext)` in a process, and return what it returns, a JSON
        value.

        `name` stands in records of errors. `own` does what the function asks its context for. `errors_place`
        is the import path of an object with the attributes `errors` and `retry_on`: the errors that come back
        as themselves, `declared` here. Cancelling kills the process. Raises those errors, HandlerError for
        any other one, and ProcessDied.
        """
        task = HandlerSpec(
            function=function,
            event=name,
            event_place=None,
            context="ctx",
            replies=True,
            max_result=sys.maxsize,
            errors_place=errors_place,
        )
        facts: dict[str, Any] = {
            "event": "",
            "group": DEFAULT_GROUP,
            "job_id": job_id,
            "attempt": attempt,
            "correlation_id": correlation_id,
            "causation_id": None,
            "meta": dict(meta or {}),
            "traceparent": traceparent,
        }
        request = make_request(task, msgspec.json.encode(payload), facts, baggage, own.max_saved)
        result = await run_in_process(self._processes, request, own, job_id, name, declared)
        return msgspec.json.decode(result)
