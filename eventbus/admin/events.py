"""The definitions of events that a provider knows: those that it handles, and those that it has emitted."""

from __future__ import annotations

from typing import Any, Final

from eventbus.admin.namespace import Namespace, OldName
from eventbus.model.event import Event


class Events(Namespace):
    """The events that this program knows; the server is not asked, and the provider need not be started."""

    def get(self, name: str) -> Event[Any, Any] | None:
        """Return the definition of an event, None if this provider has none, or only its name."""
        return self._routes.definition(name)

    def list(self) -> list[Event[Any, Any]]:
        """Return the definitions that this provider knows, by their names."""
        return self._routes.definitions()

    __call__: Final = OldName(list)  # noqa: A003  (the method)
