"""The calls of a provider that the contexts of handlers use; see `handlers.context.Tools`.

They are in an object of their own, so that the provider has only public methods that are for its users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eventbus.errors import UsageError
from eventbus.handlers.worker import EventWorker

if TYPE_CHECKING:
    from eventbus.emit.emission import Emission
    from eventbus.provider import EventProvider

__all__ = ["Toolbox"]


class Toolbox:
    """The tools of one provider, for the contexts in all its workers. `find_worker` returns the current worker."""

    def __init__(self, provider: EventProvider, find_worker: Callable[[], EventWorker | None]) -> None:
        self.provider: EventProvider = provider
        # The bound methods themselves, for speed: `ctx.emit` calls the provider without another function.
        self.emit: Callable[..., Emission[Any]] = provider.emit
        self.emit_many: Callable[..., list[Emission[Any]]] = provider.emit_many
        self._find_worker = find_worker

    async def note_progress(self, job_id: str, token: str, progress: str) -> None:
        """Record a job's progress (JSON text) under its lease. Does nothing if no worker runs here."""
        worker = self._find_worker()
        if worker is not None:
            await worker.note_progress(job_id, token, progress)

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return the object that a lifespan of this process's worker yielded. Raises UsageError."""
        worker = self._find_worker()
        if worker is None:
            raise UsageError("nothing is shared here: no worker of this provider runs in this process")
        return worker.shared.find(lifespan)
