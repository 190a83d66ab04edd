"""A registry of handlers: what functions become handlers with, by its decorator `on`.

There are two: a provider, and a collection for providers. So what a user writes above a handler is the same
in both, and so are its types.

Not here: how a handler is checked (`handler`), and what a registry does with one (`provider`, `collection`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from eventbus.handlers.batch_types import BatchRegistrar
from eventbus.handlers.handler import check_event
from eventbus.model.batch import Batch
from eventbus.model.event import Event
from eventbus.settings.keywords import HandlerKeywords, RegistrationKeywords, check_options

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P")
R = TypeVar("R")


class HandlerRegistry:
    """Takes functions as handlers. Who inherits it keeps them, in `_register`."""

    # Whether `group` and `batch` are given decides on the type of the function, so they stand by themselves.
    @overload
    def on(
        self,
        event: Event[Any, Any] | str,
        *,
        group: str = ...,
        batch: None = ...,
        **options: Unpack[HandlerKeywords],
    ) -> Callable[[F], F]: ...
    @overload
    def on(  # pyright: ignore[reportOverlappingOverload]  (the result None has a wider return type)
        self, event: Event[P, None], *, batch: Batch, group: str = ..., **options: Unpack[HandlerKeywords]
    ) -> BatchRegistrar[P, Sequence[Exception | None] | None]: ...
    @overload
    def on(
        self, event: Event[P, R], *, batch: Batch, **options: Unpack[HandlerKeywords]
    ) -> BatchRegistrar[P, Sequence[R | Exception]]: ...
    @overload
    def on(  # the results of a group of its own reach nobody
        self, event: Event[P, Any], *, batch: Batch, group: str, **options: Unpack[HandlerKeywords]
    ) -> BatchRegistrar[P, Sequence[Any] | None]: ...
    @overload
    def on(
        self, event: str, *, batch: Batch, group: str = ..., **options: Unpack[HandlerKeywords]
    ) -> Callable[[F], F]: ...
    def on(self, event: Event[Any, Any] | str, **options: Unpack[RegistrationKeywords]) -> Any:
        """Register the decorated function as the handler of an event for a group.

            @provider.on(OrderPlaced, concurrency=5, timeout="30s")
            async def charge(order: Order) -> Receipt: ...

        `concurrency` is the most jobs of the handler that one worker runs at a time, by default the
        provider's setting. `timeout` limits one attempt; by default nothing does. `retry` goes before
        the rules of the event and the provider. Async functions run in the event loop, other functions
        in threads. With `pool="process"` each job runs in a process of its own. That process is killed
        when the job times out, is cancelled or loses its lease. `pool` may also be the name of a pool
        that `provider.pool` has declared.

        With `batch=Batch(size=100)` the function takes a list of up to so many payloads, and returns a list
        of as many results, in their order; an exception in it is the error of that job alone. What it raises
        is the error of each of them. `concurrency` and `timeout` are then of its calls.

        Raises DefinitionError for a function that does not fit the event, for a function that another
        process could not find by its name, and for a second handler of one event and group. A collection
        does so, too, after a provider has included it; the name of a pool of your own, and what another
        process can find, is checked when a provider includes it.
        """
        check_event(event)
        check_options(options, RegistrationKeywords, f"a handler of {event!r}")

        def register(function: F) -> F:
            self._register(event, function, **options)
            return function

        return register

    def _register(
        self,
        event: Event[Any, Any] | str,
        function: Callable[..., Any],
        **options: Unpack[RegistrationKeywords],
    ) -> object:
        raise NotImplementedError
