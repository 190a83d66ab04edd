"""A collection of handlers: what a module of handlers registers before there is a provider.

Not here: how a provider registers and runs them (`provider`).

What must always hold: a collection that a provider has included does not grow, because that provider would
not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from eventbus.errors import DefinitionError
from eventbus.handlers.batch_types import BatchRegistrar
from eventbus.handlers.handler import check_event, make_handler
from eventbus.handlers.pools import BUILT_IN
from eventbus.model.batch import Batch
from eventbus.model.durations import Duration
from eventbus.model.event import Event
from eventbus.model.names import DEFAULT_GROUP, shown
from eventbus.model.retry import Retry, check_answers

__all__ = ["CollectedHandler", "Handlers", "collected_handlers"]

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P")
R = TypeVar("R")


class CollectedHandler(NamedTuple):
    """One handler of a collection, with the options of `Handlers.on`."""

    event: Event[Any, Any] | str
    function: Callable[..., Any]
    options: dict[str, Any]


class Handlers:
    """A collection of handlers in a module of its own, which needs no provider.

        handlers = Handlers()

        @handlers.on(OrderPlaced, group="billing")
        async def charge(order: Order) -> Receipt: ...

        provider.include(handlers)  # in the main module

    Several providers may include one collection.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], CollectedHandler] = {}
        self._is_included = False

    @overload
    def on(
        self,
        event: Event[Any, Any] | str,
        *,
        group: str = ...,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
        batch: None = ...,
    ) -> Callable[[F], F]: ...
    @overload
    def on(  # pyright: ignore[reportOverlappingOverload]  (the result None has a wider return type)
        self,
        event: Event[P, None],
        *,
        batch: Batch,
        group: str = ...,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
    ) -> BatchRegistrar[P, Sequence[Exception | None] | None]: ...
    @overload
    def on(
        self,
        event: Event[P, R],
        *,
        batch: Batch,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
    ) -> BatchRegistrar[P, Sequence[R | Exception]]: ...
    @overload
    def on(  # the results of a group of its own reach nobody
        self,
        event: Event[P, Any],
        *,
        batch: Batch,
        group: str,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
    ) -> BatchRegistrar[P, Sequence[Any] | None]: ...
    @overload
    def on(
        self,
        event: str,
        *,
        batch: Batch,
        group: str = ...,
        concurrency: int | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        pool: str | None = ...,
    ) -> Callable[[F], F]: ...
    def on(
        self,
        event: Event[Any, Any] | str,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        pool: str | None = None,
        batch: Batch | None = None,
    ) -> Any:
        """Add the decorated function to the collection, with the options of `EventProvider.on`.

        Raises DefinitionError as that does, for a second handler of one event and group, and after a provider
        has included the collection. The name of a pool of your own is checked when a provider includes the
        collection.
        """
        check_event(event)

        def add(function: F) -> F:
            self._add(
                event,
                function,
                group=group,
                concurrency=concurrency,
                retry=retry,
                timeout=timeout,
                pool=pool,
                batch=batch,
            )
            return function

        return add

    def _add(self, event: Event[Any, Any] | str, function: Callable[..., Any], **options: Any) -> None:
        name = event if isinstance(event, str) else event.name
        if self._is_included:
            raise DefinitionError(
                f"a provider has included this collection already, without handler {shown(function)} of "
                f"event {name!r}; import the module that adds it before provider.include(...)"
            )
        known = self._handlers.get((name, options["group"]))
        if known is not None:
            raise DefinitionError(
                f"event {name!r} has a handler for group {options['group']!r} in this collection already: "
                f"{known.function!r}; give the second one a group of its own"
            )
        if options["pool"] is None or options["pool"] in BUILT_IN:
            is_typed = isinstance(event, Event)
            make_handler(
                function,
                event=name,
                payload=event.payload if is_typed else Any,
                result=event.result if is_typed else Any,
                **options,
            )
        if isinstance(event, Event) and isinstance(options["retry"], Retry):
            where = f"the handler of event {name!r}"
            check_answers(options["retry"], where, errors=event.errors, retry_on=event.retry_on)
        self._handlers[name, options["group"]] = CollectedHandler(event, function, options)

    def _take(self) -> Iterator[CollectedHandler]:
        """Yield the handlers; who has taken the last one has included the collection."""
        yield from list(self._handlers.values())
        self._is_included = True


def collected_handlers(given: Any) -> Iterator[CollectedHandler]:
    """Return the handlers of a collection, for a provider that includes it. Raises DefinitionError for
    anything else.
    """
    if not isinstance(given, Handlers):
        raise DefinitionError(f"expected a collection of handlers, made by Handlers(), got: {shown(given)}")
    return given._take()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
