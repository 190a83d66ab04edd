"""Routes: where the emissions of each event go, with its codecs, prepared once per provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from eventbus.codec import Codec
from eventbus.config import Settings
from eventbus.errors import DefinitionError
from eventbus.event import Event
from eventbus.failure import revive
from eventbus.names import queue_name, shown
from eventbus.store.rows import AddQueue

__all__ = ["Route", "Routes"]


class Route:
    """One event's way into the server: its queue, its codecs, its defaults."""

    __slots__ = (
        "encode_payload",
        "event",
        "key",
        "name",
        "payload",
        "queue",
        "result",
        "row",
    )

    def __init__(self, event: Event[Any, Any], settings: Settings) -> None:
        self.event = event
        self.name = event.name
        self.queue = queue_name(event.name)
        self.row = AddQueue(
            self.queue, int(event.default), "" if settings.max_waiting is None else settings.max_waiting
        )
        self.payload = Codec(event.payload, role="payload", owner=event.name, max_bytes=settings.max_payload)
        self.result = Codec(event.result, role="result", owner=event.name, max_bytes=settings.max_result)
        self.encode_payload: Callable[[Any], bytes] = self.payload.encode
        self.key = event.key

    def decode_result(self, text: str) -> Any:
        """Make the result of its JSON text."""
        return self.result.decode(text)

    def revive(self, state: str, text: str, job_id: str) -> Exception:
        """Make the error of a job that did not complete; declared ones are made as themselves."""
        return revive(state, text, event=self.name, job_id=job_id, declared=self.event.errors)


class Routes:
    """The routes of one provider; one definition for each event name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._routes: dict[str, Route] = {}

    def find(self, event: Event[Any, Any] | str) -> Route:
        """Return the route of an event, or of an event's name (untyped unless it was seen typed).

        Raises DefinitionError for two different events of one name.
        """
        try:
            route = self._routes.get(event if isinstance(event, str) else event.name)
        except AttributeError:
            route = None
        if route is not None and (route.event is event or isinstance(event, str)):
            return route
        return self._add(event, route)

    def known(self, name: str) -> Event[Any, Any] | None:
        """Return the event of a name, if it has a route already."""
        route = self._routes.get(name)
        return None if route is None else route.event

    def _add(self, given: Any, known: Route | None) -> Route:
        event = Event(given) if isinstance(given, str) else cast("Event[Any, Any]", given)
        if not isinstance(given, (str, Event)):
            raise DefinitionError(f"expected an Event or the name of one, got: {shown(given)}")
        if known is not None and not _is_bare(known.event):
            raise DefinitionError(
                f"event {event.name!r} is defined twice; define it once and import it where it is used"
            )
        route = Route(event, self._settings)
        self._routes[event.name] = route
        return route


def _is_bare(event: Event[Any, Any]) -> bool:
    """Made from a name alone, so that a definition may still take its place."""
    return event.payload is Any and event.result is Any and event.key is None and not event.errors
