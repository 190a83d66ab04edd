"""The messages between a worker and its processes, in JSON: a request there, log notes and a report back.

Not here: the processes (`runtime.process_pool`), and the program that runs in them (`child`).

What must always hold: a request makes a process import and run only the import paths that this program's own
code gave when it registered the handler.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.emit.route import Route
from eventbus.errors import DefinitionError
from eventbus.handlers.handler import Handler
from eventbus.handlers.process.import_path import (
    ImportPath,
    import_path_of_event,
    import_path_of_function,
    is_found_here,
)
from eventbus.model.names import DEFAULT_GROUP


class HandlerSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a handler for another process; the same for all its jobs.

    `event_place` is the import path of the event, None for an untyped one. `context` is the name of the
    context's parameter, or None. `replies` says whether the result is sent back. `max_result` is in bytes.
    `errors_place` is the import path of another object with `errors` and `retry_on`, if there is no event
    that declares them.
    """

    function: ImportPath
    event: str
    event_place: ImportPath | None
    context: str | None
    replies: bool
    max_result: int
    errors_place: ImportPath | None = None


class Request(msgspec.Struct):
    """One job for a process. `facts` become its `JobFacts`; `span_id` and `baggage` are those of its trace.

    `max_saved` is the most bytes of a value that it saves.
    """

    task: HandlerSpec
    payload: msgspec.Raw
    facts: dict[str, Any]
    span_id: str = ""
    baggage: str = ""
    max_saved: int = 0


class ReportedLeaf(msgspec.Struct, frozen=True):
    """An error inside a group: see `Report`."""

    is_final: bool
    kinds: tuple[str, ...]
    is_awaited: bool


class Report(msgspec.Struct, omit_defaults=True):
    """How a job ended: `result`, or `error`, a record of `telemetry.failure`; `is_final` if no retry can
    help.

    `kinds` are the names of the error's class and of those that this inherits from. `is_awaited`:
    see `Recorded`. `leaves` are the errors in a group. A job that is put off has neither, but `later`, in
    seconds.
    """

    result: msgspec.Raw = msgspec.Raw()
    error: str = ""
    is_final: bool = False
    kinds: list[str] = []
    is_awaited: bool = False
    leaves: list[ReportedLeaf] = []
    later: float | None = None


class AttemptCall(msgspec.Struct, omit_defaults=True):
    """One call of a process while it works: `text` is to be saved; without one, what was saved is asked for.

    With `watches` it asks whether it should end, and wants to hear of it from then on. With a `line`, which
    is to be kept, it wants no reply. `place` numbers the calls of a request.
    """

    place: int
    text: str | None = None
    watches: bool = False
    line: str | None = None


class Reply(msgspec.Struct, omit_defaults=True):
    """The worker's reply to a call: a text, or an error with the name of its class in `eventbus.errors`."""

    place: int
    text: str | None = None
    error: str = ""
    kind: str = ""


class LogNote(msgspec.Struct):
    """One event that a handler logged with structlog while it ran."""

    logger: str
    level: str
    event: str
    fields: dict[str, Any]


def make_spec(route: Route, handler: Handler) -> HandlerSpec:
    """Describe a handler for another process.

    Raises DefinitionError if another process cannot find the function, or the event if that has types.
    """
    function = import_path_of_function(handler.function, f"the handler of event {route.name!r}")
    event = route.event
    is_typed = event.payload is not Any or event.result is not Any or event.errors
    near: str = handler.function.__module__
    return HandlerSpec(
        function=function,
        event=route.name,
        event_place=import_path_of_event(event, near, f"event {route.name!r}") if is_typed else None,
        context=handler.context,
        replies=handler.group == DEFAULT_GROUP,
        max_result=route.result.max_bytes,
    )


def check_found(task: HandlerSpec, handler: Handler) -> None:
    """Check that the import path of a handler leads to it. Its module must be imported already.

    Raises DefinitionError if another object has its name, as after a further decorator.
    """
    if not is_found_here(task.function, handler.function):
        raise DefinitionError(
            f'{task.function} is not the handler that was registered with pool="process"; put '
            "@provider.on above its other decorators and give the function a name of its own"
        )
