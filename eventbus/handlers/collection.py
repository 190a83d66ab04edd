"""A collection of handlers: what a module of handlers registers before there is a provider.

Not here: how a provider registers and runs them (`provider`).

What must always hold: a collection that a provider has included does not grow, because that provider would
not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Unpack

from eventbus.errors import DefinitionError
from eventbus.handlers.handler import check_retry, make_handler
from eventbus.handlers.pools import BUILT_IN
from eventbus.handlers.registry import HandlerRegistry
from eventbus.model.event import Event
from eventbus.model.names import DEFAULT_GROUP, shown
from eventbus.model.retry import Retry
from eventbus.settings.keywords import RegistrationKeywords


class CollectedHandler(NamedTuple):
    """One handler of a collection, with the options of `Handlers.on`."""

    event: Event[Any, Any] | str
    function: Callable[..., Any]
    options: RegistrationKeywords


class Handlers(HandlerRegistry):
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

    def _register(
        self,
        event: Event[Any, Any] | str,
        function: Callable[..., Any],
        **options: Unpack[RegistrationKeywords],
    ) -> None:
        declared = event if isinstance(event, Event) else Event(event)
        name, group = declared.name, options.get("group", DEFAULT_GROUP)
        if self._is_included:
            raise DefinitionError(
                f"a provider has included this collection already, without handler {shown(function)} of "
                f"event {name!r}; import the module that adds it before provider.include(...)"
            )
        known = self._handlers.get((name, group))
        if known is not None:
            raise DefinitionError(
                f"event {name!r} has a handler for group {group!r} in this collection already: "
                f"{known.function!r}; give the second one a group of its own"
            )
        if options.get("pool") in (None, *BUILT_IN):
            make_handler(function, declared, **options)
        elif isinstance(retry := options.get("retry"), Retry):
            check_retry(retry, declared)
        self._handlers[name, group] = CollectedHandler(event, function, options)

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
