"""Middleware: functions around every handler of a provider, the first one outermost.

Not here: when it runs; `subscriber` makes a chain for each job, and none where nothing is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from eventbus.context import EventContext
from eventbus.errors import DefinitionError
from eventbus.names import shown

__all__ = ["CallNext", "Middleware", "chain", "check_middleware"]


class CallNext(Protocol):
    """Calls what a middleware stands around: the next one, or the handler."""

    def __call__(self, payload: Any, /) -> Awaitable[Any]:
        """Return its result, or raise what it raises."""
        ...


Middleware: TypeAlias = Callable[[Any, EventContext, CallNext], Awaitable[Any]]
"""Takes a job's payload, its context, and the call to go on with."""


def check_middleware(given: Any) -> None:
    """Raises DefinitionError for what is no async function of payload, context and call."""
    is_async = inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(
        getattr(given, "__call__", None)  # noqa: B004  (an object whose call is a coroutine function)
    )
    try:
        inspect.signature(given).bind(None, None, None)
        fits = is_async
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise DefinitionError(
            "expected a middleware to be an async function of a payload, an EventContext and a call, "
            f"got: {shown(given)}"
        )


def chain(middleware: Sequence[Middleware], context: EventContext, call: CallNext) -> CallNext:
    """Return the call of one job with its middleware around it."""
    for each in reversed(middleware):
        call = _Step(each, context, call)
    return call


class _Step:
    """One middleware at one job."""

    __slots__ = ("_call", "_context", "_middleware")

    def __init__(self, middleware: Middleware, context: EventContext, call: CallNext) -> None:
        self._middleware = middleware
        self._context = context
        self._call = call

    def __call__(self, payload: Any, /) -> Awaitable[Any]:
        return self._middleware(payload, self._context, self._call)
