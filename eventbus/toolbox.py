"""The calls of a provider that the contexts of handlers use; see `handlers.context.Tools`.

They are in an object of their own, so that the provider has only public methods that are for its users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eventbus.engine.job import Job
from eventbus.errors import ProviderStopped, UsageError
from eventbus.handlers.context import Stopping
from eventbus.handlers.saved import SAVED
from eventbus.handlers.worker import EventWorker

if TYPE_CHECKING:
    from eventbus.emit.emission import Emission
    from eventbus.provider import EventProvider

__all__ = ["Toolbox"]


class Toolbox:
    """The tools of one provider, for the contexts in all its workers. `find_worker` returns the current
    worker.
    """

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

    def keep_line(self, job_id: str, line: str) -> None:
        """Keep a log line with a running job. Does nothing if no worker runs here; called from any thread."""
        worker = self._find_worker()
        if worker is not None:
            worker.keep_line(job_id, line)

    async def save(self, job: Job, text: str, name: str = SAVED, /) -> None:
        """Keep a JSON text for the next run of a job, under its lease. Raises StoreRefused,
        ProviderStopped.
        """
        await self._worker("save a value").save(job, text, name)

    async def read_saved(self, job: Job, name: str = SAVED, /) -> str | None:
        """Return the JSON text that a job saved last, None if there is none. Raises StoreError,
        ProviderStopped.
        """
        return await self._worker("read a saved value").read_saved(job, name)

    def stopping(self, job: Job) -> Stopping | None:
        """Return why a job should end early, None if it should go on; called from any thread."""
        worker = self._find_worker()
        return "stop" if worker is None else worker.stopping(job)

    @property
    def max_saved(self) -> int:
        """The most bytes of a saved value: `max_result`."""
        return self.provider.settings.max_result

    def _worker(self, verb: str) -> EventWorker:
        worker = self._find_worker()
        if worker is None:
            raise ProviderStopped(f"cannot {verb}: the worker of this provider has stopped")
        return worker

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return the object that a lifespan of this process's worker yielded. Raises UsageError."""
        worker = self._find_worker()
        if worker is None:
            raise UsageError("nothing is shared here: no worker of this provider runs in this process")
        return worker.shared.find(lifespan)
