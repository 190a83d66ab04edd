"""The definitions of events that a provider knows: those that it handles, and those that it has emitted."""

from __future__ import annotations

from typing import Any

from eventbus.emit.route import Routes
from eventbus.model.event import Event

__all__ = ["Definitions"]


class Definitions:
    """The methods of the inspector that look at this program, and not at the server."""

    _routes: Routes

    def event(self, name: str) -> Event[Any, Any] | None:
        """Return the definition of an event, None if this provider has none, or only its name."""
        return self._routes.definition(name)

    def events(self) -> list[Event[Any, Any]]:
        """Return the definitions that this provider knows, by their names."""
        return self._routes.definitions()
