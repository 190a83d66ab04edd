"""The subscriptions of a provider: which handler serves which event and group in this process."""

from __future__ import annotations

from collections.abc import Iterator

from eventbus.emit.route import Route
from eventbus.errors import DefinitionError
from eventbus.handlers.handler import Handler
from eventbus.handlers.process.messages import HandlerSpec, make_spec
from eventbus.model.names import queue_name


class Subscription:
    """One handler of one event and group; the name of its queue holds both.

    `task` is the handler's description for another process, None for a handler that runs in this process.
    Making one raises DefinitionError if another process could not find the handler.
    """

    __slots__ = ("handler", "queue", "route", "task")

    def __init__(self, route: Route, handler: Handler) -> None:
        self.route: Route = route
        self.handler: Handler = handler
        self.queue: str = queue_name(route.name, handler.group)
        self.task: HandlerSpec | None = make_spec(route, handler) if handler.is_remote else None


class Subscriptions:
    """The subscriptions of one provider, in the order of their registration."""

    def __init__(self) -> None:
        self.by_queue: dict[str, Subscription] = {}

    def add(self, subscription: Subscription) -> None:
        """Add a subscription. Raises DefinitionError if its event and group have a handler already."""
        known = self.by_queue.get(subscription.queue)
        if known is not None:
            raise DefinitionError(
                f"event {subscription.route.name!r} has a handler for group {subscription.handler.group!r} "
                f"already: {known.handler.function!r}; give the second one a group of its own"
            )
        self.by_queue[subscription.queue] = subscription

    def discard(self, subscription: Subscription) -> None:
        """Remove a subscription that is not served, or not any more. Idempotent."""
        if self.by_queue.get(subscription.queue) is subscription:
            del self.by_queue[subscription.queue]

    def __iter__(self) -> Iterator[Subscription]:
        return iter(list(self.by_queue.values()))

    def __len__(self) -> int:
        return len(self.by_queue)
