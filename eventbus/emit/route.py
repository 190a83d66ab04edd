"""Routes: the queue, the codecs and the defaults of each event, prepared once per provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from eventbus.errors import DefinitionError, PayloadError
from eventbus.model.codec import Codec
from eventbus.model.containment import contained, original
from eventbus.model.event import Event
from eventbus.model.names import check_key, queue_name, shown
from eventbus.model.redaction.marks import encode_marks
from eventbus.settings.settings import Settings
from eventbus.store.keys import key_digest
from eventbus.store.scripting.script_rows import NEEDS_WORKER, AddQueue
from eventbus.telemetry.failure import revive


class Route:
    """The queue, the codecs and the defaults of one event."""

    __slots__ = (
        "encode_payload",
        "event",
        "hidden",
        "key",
        "limit_by",
        "name",
        "payload",
        "queue",
        "result",
        "row",
    )

    def __init__(self, event: Event[Any, Any], settings: Settings) -> None:
        self.event: Event[Any, Any] = event
        self.name: str = event.name
        self.queue: str = queue_name(event.name)
        self.row: AddQueue = AddQueue(
            self.queue,
            int(event.default),
            "" if settings.max_waiting is None else settings.max_waiting,
            NEEDS_WORKER if event.require_worker else 0,
        )
        self.payload: Codec = Codec(
            event.payload, role="payload", owner=event.name, max_bytes=settings.max_payload
        )
        self.result: Codec = Codec(
            event.result, role="result", owner=event.name, max_bytes=settings.max_result
        )
        self.encode_payload: Callable[[Any], bytes] = self.payload.encode
        self.hidden: bytes = encode_marks(p=event.payload, result=event.result)
        """Where its payloads and results are sensitive, for the message; empty if nowhere."""
        self.key: Callable[[Any], str] | None = event.key
        self.limit_by: Callable[[Any], str | int] | None = event.limit.by if event.limit else None

    def limit_key(self, payload: Any) -> str:
        """Return the digest of the limit key of an emission, by the function that the event's limit has; `""`
        without one.

        Raises PayloadError if that raises, or returns something else than text or an integer.
        """
        if self.limit_by is None:
            return ""
        by = f"the by of the limit of {self.name}"
        try:
            key: Any = contained(self.limit_by, payload)
        except Exception as error:  # noqa: BLE001  (whatever a function of the user's raises)
            own = original(error)
            raise PayloadError(f"{by} raised {type(own).__name__}: {own}", event=self.name) from own
        try:
            return key_digest(check_key(f"{key:d}" if type(key) is int else key))
        except (DefinitionError, ValueError):  # ValueError: of an integer of thousands of digits
            said = (
                f"expected {by} to return an integer, or text of 1 to 512 characters without NUL and lone "
                f"surrogates, got: {shown(key)}"
            )
            raise PayloadError(said, event=self.name) from None

    def row_for(self, require_worker: bool | None) -> AddQueue:
        """Return the queue of an emission that says so itself; None: as the event says."""
        if require_worker is None or require_worker == self.event.require_worker:
            return self.row
        return self.row._replace(traits=NEEDS_WORKER if require_worker else 0)

    def decode_result(self, text: str) -> Any:
        """Return the result that a JSON text stands for."""
        return self.result.decode(text)

    def revive(self, state: str, text: str, job_id: str) -> Exception:
        """Return the error of a job that did not complete. A declared error is of its own class."""
        return revive(state, text, event=self.name, job_id=job_id, declared=self.event.errors)


class Routes:
    """The routes of one provider; one definition for each event name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._routes: dict[str, Route] = {}

    def find(self, event: Event[Any, Any] | str) -> Route:
        """Return the route of an event or of an event's name.

        For a name, the route is untyped unless the event itself was passed before. Raises DefinitionError for
        two different events of one name.
        """
        # No check of the type on this path, which each emission takes: `_add` refuses anything else.
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

    def definition(self, name: str) -> Event[Any, Any] | None:
        """Return the event of a name, if it was defined, and not only named."""
        event = self.known(name)
        return None if event is None or _is_bare(event) else event

    def definitions(self) -> list[Event[Any, Any]]:
        """Return the events that were defined, by their names."""
        return [route.event for _, route in sorted(self._routes.items()) if not _is_bare(route.event)]

    def _add(self, given: Any, known: Route | None) -> Route:
        """Add the route of an event. It may replace only a route that was made from the name alone."""
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
    """Return whether an event looks made from a name alone, so that a definition may still replace it."""
    has_defaults = event.key is None and event.limit is None and not event.errors
    return event.payload is Any and event.result is Any and has_defaults
