"""Middleware: functions around every handler of a provider, the first one outermost.

Not here: when middleware runs. `handlers.consumer` makes a chain for each job, or none if there is no
middleware.

What must always hold: a handler inside a middleware is called with a payload that fits its event, or not at
all.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from eventbus.errors import DefinitionError, PayloadError
from eventbus.handlers.context import EventContext
from eventbus.model.codec import Codec
from eventbus.model.names import shown


class CallNext(Protocol):
    """The `call` that a middleware gets: it calls the next middleware, or the handler after the last one."""

    def __call__(self, payload: Any, /) -> Awaitable[Any]:
        """Go on with this payload; return the handler's result or raise its error.

        Another payload than the one that came in is checked against the event first. Raises PayloadError if
        it does not fit.
        """
        ...


Middleware: TypeAlias = Callable[[Any, EventContext, CallNext], Awaitable[Any]]
"""An async function of a job's payload, its context and the call to go on with; it returns the result."""


def check_middleware(
    given: Any, *, takes: str = "a payload, an EventContext and a call", owner: str = "provider"
) -> None:
    """Raise DefinitionError unless `given` is an async function of a payload, a context and a call.

    `takes` names these, and `owner` the object with the `use`, in the error.
    """
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
            f"expected a middleware to be an async function of {takes}, got: {shown(given)}"
            + (f"; write @{owner}.use without parentheses" if given is None else "")
        )


def chain(middleware: Sequence[Middleware], context: EventContext, call: CallNext) -> CallNext:
    """Return `call`, the handler of one job, with the middleware around it; the first one is outermost."""
    for around in reversed(middleware):
        call = _Step(around, context, call)
    return call


def encode_passed_on(codec: Codec, payload: Any) -> bytes:
    """Encode a payload that a middleware passed on as JSON. Raises PayloadError, which names the middleware's
    part.
    """
    try:
        return codec.encode(payload)
    except PayloadError as error:
        raise PayloadError(
            f"{error}; a middleware passed it on", event=error.event, path=error.path, role="payload"
        ) from error.__cause__


class _Step:
    """One middleware around the rest of one job's call."""

    __slots__ = ("_call", "_context", "_middleware")

    def __init__(self, middleware: Middleware, context: EventContext, call: CallNext) -> None:
        self._middleware = middleware
        self._context = context
        self._call = call

    def __call__(self, payload: Any, /) -> Awaitable[Any]:
        return self._middleware(payload, self._context, self._call)
