"""What travels between a worker and its processes: an assignment there, log notes and a report back. JSON.

Not here: the processes (`engine.processes`), and the program that runs in them (`child`).
What must hold: nothing of an assignment is run or imported but the places that this program's
own code named when it registered the handler.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.errors import DefinitionError
from eventbus.handler import Handler
from eventbus.names import DEFAULT_GROUP
from eventbus.remote.place import Place, is_found_here, place_of_event, place_of_function
from eventbus.route import Route

__all__ = ["Assignment", "LogNote", "Report", "Task", "check_found", "make_task"]


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is the same for all jobs of one handler.

    `event_place` is None for an untyped event. `replies` says whether the result is wanted.
    """

    function: Place
    event: str
    event_place: Place | None
    context: str | None
    replies: bool
    max_result: int


class Assignment(msgspec.Struct):
    """One job for a process. `facts` are those of its `JobFacts`."""

    task: Task
    payload: msgspec.Raw
    facts: dict[str, Any]


class Report(msgspec.Struct, omit_defaults=True):
    """How it ended: `result`, or `error`, a record of `failure`; `is_final` if no retry can help."""

    result: msgspec.Raw = msgspec.Raw()
    error: str = ""
    is_final: bool = False


class LogNote(msgspec.Struct):
    """What was logged on the way, by structlog."""

    logger: str
    level: str
    event: str
    fields: dict[str, Any]


def make_task(route: Route, handler: Handler) -> Task:
    """Return the task of a handler. Raises DefinitionError if another process cannot find what it needs."""
    function = place_of_function(handler.function, f"the handler of event {route.name!r}")
    event = route.event
    is_typed = event.payload is not Any or event.result is not Any or event.errors
    near: str = handler.function.__module__
    return Task(
        function=function,
        event=route.name,
        event_place=place_of_event(event, near, f"event {route.name!r}") if is_typed else None,
        context=handler.context,
        replies=handler.group == DEFAULT_GROUP,
        max_result=route.result.max_bytes,
    )


def check_found(task: Task, handler: Handler) -> None:
    """Make sure that the place of a handler is its own; possible once its module is imported.

    Raises DefinitionError if another object has its name, as after a further decorator.
    """
    if not is_found_here(task.function, handler.function):
        raise DefinitionError(
            f'{task.function} is not the handler that was registered with pool="process"; put '
            "@provider.on above its other decorators and give the function a name of its own"
        )
