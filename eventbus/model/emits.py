"""`Emits`: the one description of `emit` and `emit_many` for objects that pass these calls on.

Users see the overloads of providers and contexts, which know the types of events. Behind those, every object
that emits, whether for an event loop, a thread or a flow, is an `Emits` of the type of emission that it
returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

E = TypeVar("E")


class Emits(Protocol[E]):
    """Emits as `EventProvider` does. `E` is the type of one emission."""

    def emit(self, event: Any, payload: Any = ..., **options: Any) -> E:
        """Emit as `EventProvider.emit` does."""
        ...

    def emit_many(self, event: Any, payloads: Iterable[Any], **options: Any) -> list[E]:
        """Emit many as `EventProvider.emit_many` does."""
        ...
