"""Which handler answers which event and group, in one process."""

from __future__ import annotations

from collections.abc import Iterator

from eventbus.errors import DefinitionError
from eventbus.handler import Handler
from eventbus.names import queue_name
from eventbus.remote.assignment import make_task
from eventbus.route import Route

__all__ = ["Registry", "Subscription"]


class Subscription:
    """One handler of one event and group; its queue names both.

    `task` is what a process must know of it, None for a handler that runs in this process.
    Raises DefinitionError if a process could not find it.
    """

    __slots__ = ("handler", "queue", "route", "task")

    def __init__(self, route: Route, handler: Handler) -> None:
        self.route = route
        self.handler = handler
        self.queue = queue_name(route.name, handler.group)
        self.task = make_task(route, handler) if handler.pool == "process" else None


class Registry:
    """The subscriptions of one provider, in the order of their registration."""

    def __init__(self) -> None:
        self._by_queue: dict[str, Subscription] = {}

    def add(self, subscription: Subscription) -> None:
        """Raises DefinitionError for a second handler of one event and group."""
        known = self._by_queue.get(subscription.queue)
        if known is not None:
            raise DefinitionError(
                f"event {subscription.route.name!r} has a handler for group {subscription.handler.group!r} "
                f"already: {known.handler.function!r}; give the second one a group of its own"
            )
        self._by_queue[subscription.queue] = subscription

    def discard(self, subscription: Subscription) -> None:
        """Forget a subscription that could not be served."""
        if self._by_queue.get(subscription.queue) is subscription:
            del self._by_queue[subscription.queue]

    def __iter__(self) -> Iterator[Subscription]:
        return iter(list(self._by_queue.values()))

    def __len__(self) -> int:
        return len(self._by_queue)
