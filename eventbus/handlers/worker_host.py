"""What one worker does for the attempts that it runs.

What must always hold: in a process that was forked from the worker's, and after the end of the worker,
nothing is sent, and nothing is shared. The connection and what lifespans yielded belong to others there.

Not here: how the texts travel (`engine.progress`, `engine.kept_lines`, `engine.claiming.append_queue`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from eventbus.emit.emission import Emission
from eventbus.emit.sync_emission import SyncEmission
from eventbus.engine.job import Job
from eventbus.engine.kept_lines import LineWriter
from eventbus.engine.progress import ProgressWriter
from eventbus.engine.worker import Worker
from eventbus.errors import ProviderStopped, StoreRefused, UsageError
from eventbus.handlers.attempt import Stopping
from eventbus.handlers.lifespan import Shared
from eventbus.model.emits import Emits
from eventbus.runtime.blocking_call import run_blocking, running_loop
from eventbus.settings.settings import Settings
from eventbus.store.store import Store

T = TypeVar("T")

_REASONS: dict[str, Stopping] = {
    "shutdown": "stop",
    "cancel": "cancel",
    "timeout": "timeout",
    "lease": "lease lost",
}


class Bus(Emits[Emission[Any]], Protocol):
    """The provider, as its workers know it."""

    @property
    def sync(self) -> Emits[SyncEmission[Any]]:
        """The same for threads."""
        ...


class WorkerHost:
    """What one worker does for its attempts. It is closed when the worker has ended, and in a fork."""

    def __init__(
        self,
        bus: Bus,
        shared: Shared,
        worker: Worker,
        store: Store,
        settings: Settings,
        find_loop: Callable[[str], asyncio.AbstractEventLoop],
    ) -> None:
        """`find_loop(verb)` returns the loop in which the provider is started, or raises what a thread is
        told that wants to `verb`.
        """
        # The bound methods themselves, for speed: `ctx.emit` calls the provider without another function.
        self.emit: Callable[..., Emission[Any]] = bus.emit
        self.emit_many: Callable[..., list[Emission[Any]]] = bus.emit_many
        self.in_threads: Emits[SyncEmission[Any]] = bus.sync
        self.max_saved: int = settings.max_result
        self._shared = shared
        self._worker = worker
        self._executor = worker.claimer.executor
        self._store = store
        self._settings = settings
        self._find_loop = find_loop
        self._progress = ProgressWriter(store, self._executor)
        self._lines: LineWriter | None = None
        self._is_closed = False

    def open(self) -> None:
        """Begin, in the event loop of the worker."""
        self._lines = LineWriter(self._store, self._executor)

    def close(self) -> None:
        """Do nothing more for attempts that outlive the worker, or that were forked from its process."""
        self._is_closed = True

    def shared(self, lifespan: Any, /) -> Any:
        """Return the value that a lifespan yielded in this worker. Raises UsageError, also after
        its end and in a fork.
        """
        if self._is_closed:
            raise UsageError("nothing is shared here: no worker of this provider runs in this process")
        return self._shared.find(lifespan)

    @property
    def emits(self) -> Emits[Any]:
        """What to emit with where the caller runs: plain functions run in threads."""
        return self.in_threads if running_loop() is None else self

    def wait(self, verb: str, call: Callable[..., Coroutine[Any, Any, T]], *given: Any) -> T:
        """Make a call in the event loop of the worker, and wait for it in the caller's thread.

        Raises what the call raises, and ProviderStopped. `verb` says in that what the caller wants to do.
        """
        return run_blocking(self._find_loop(verb), call(*given))

    def note_line(self, job: Job, line: str) -> None:
        """Keep a log line with a job that runs here; see `LineWriter.keep`."""
        if self._lines is not None and not self._is_closed:
            self._lines.keep(job.id, line)

    async def note_progress(self, job: Job, progress: str) -> None:
        """Record the progress of a job under its lease. Does nothing after the end of the worker. Raises
        StoreRefused.
        """
        if not self._is_closed:
            await self._progress.write(job.id, job.token, progress)

    async def save(self, job: Job, text: str, name: str) -> None:
        """Keep a text for the next run of a job, under its lease.

        Raises StoreRefused if the lease is lost; the handler is cancelled then. Raises ProviderStopped if the
        worker has ended, or ends before the answer.
        """
        self._check_open("save a value")
        if await self._worker.claimer.append(job, (), live={name: text}, taken=()) == "lost":
            self._executor.lose([(job.id, job.token)])
            raise StoreRefused(
                f"nothing was saved for job {job.id}: its lease is lost or its attempt has ended, and "
                "another run may have begun"
            )

    async def read_saved(self, job: Job, name: str) -> str | None:
        """Ask the server for what a run of this job saved last. Raises StoreError, ProviderStopped."""
        self._check_open("read a saved value")
        return await self._store.journals.live(job.id, name, deadline=self._settings.deadline(None))

    def stopping(self, job: Job) -> Stopping | None:
        """Return why a job of this worker should end early, None if it should go on; in any thread."""
        if self._is_closed:
            return "stop"
        if job.ending:
            return _REASONS[job.ending]
        return "stop" if self._worker.stopping.is_set() else None

    def _check_open(self, verb: str) -> None:
        if self._is_closed:
            raise ProviderStopped(f"cannot {verb}: the worker of this provider has stopped")
