"""A worker of this process: the engine's worker with the subscribers of a provider."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack

from eventbus.config import Settings
from eventbus.context import SyncTools, Tools
from eventbus.engine.consumer import Consumer
from eventbus.engine.health import Health
from eventbus.engine.notes import Notes
from eventbus.engine.processes import Processes
from eventbus.engine.threads import Threads
from eventbus.engine.worker import Worker, WorkerOptions
from eventbus.errors import ProviderStopped
from eventbus.guest import Guest, Host
from eventbus.lifespan import Lifespan, Shared
from eventbus.logs import get_logger
from eventbus.middleware import Middleware
from eventbus.registry import Subscription
from eventbus.remote.handler import log_note
from eventbus.store.store import Store
from eventbus.subscriber import Subscriber

__all__ = ["Runner"]

_log = get_logger("eventbus.worker")

_LAST_STEPS = 2.0
"""Seconds beyond the grace for lifespans to be left in."""


class Runner:
    """Runs one worker; started once, stopped once."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        tools: Tools,
        sync: SyncTools,
        middleware: Sequence[Middleware] = (),
        lifespans: Sequence[Lifespan] = (),
    ) -> None:
        self.shared = Shared(lifespans, tools)
        self._settings = settings
        self._tools = tools
        self._sync = sync
        self._middleware = middleware
        self._threads = Threads(settings.max_concurrency)
        self._processes = Processes(log_note)
        self._consumers: dict[str, Consumer] = {}
        options = WorkerOptions(
            max_concurrency=settings.max_concurrency,
            lease=settings.lease,
            hang_after=settings.hang_after,
            grace=settings.grace,
            max_stalls=settings.max_stalls,
            key_ttl=settings.key_ttl,
        )
        self._worker = Worker(store, self._consumers, options)
        self._notes = Notes(store, self._worker.claimer.executor)
        self._task: asyncio.Task[None] | None = None
        self._is_entered = False
        self._is_given_up = False
        self._leaving: asyncio.Timeout | None = None

    @property
    def id(self) -> str:
        """The worker's id, as leases show it."""
        return self._worker.id

    @property
    def queues(self) -> list[str]:
        """The queues it serves."""
        return list(self._consumers)

    @property
    def is_idle(self) -> bool:
        """Nothing runs and no queue is known to have work."""
        return self._worker.claimer.is_idle

    @property
    def claimed(self) -> int:
        """Jobs claimed since the start."""
        return self._worker.claimer.claimed

    def health(self) -> Health:
        """How the worker is; from any thread."""
        return self._worker.health()

    async def start(
        self, subscriptions: Iterable[Subscription], guests: Iterable[tuple[Guest, str]] = ()
    ) -> None:
        """Start the worker; returns when it is ready. Raises what its start raised."""
        for each in subscriptions:
            self._add(each)
        host = Host(self._settings, self._tools, self._sync, self._threads, self.id)
        for guest, queue in guests:
            self._consumers[queue] = guest.make_consumer(queue, host)
        self._task = asyncio.create_task(self._run(), name="eventbus-worker")
        self._task.add_done_callback(self._on_ended)
        ready = asyncio.create_task(self._worker.ready.wait())
        try:
            await asyncio.wait([self._task, ready], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not self._worker.ready.is_set():
            if not self._task.cancelled():
                await self._task
            raise ProviderStopped("the worker was stopped before it was ready")
        _log.info("worker ready", worker=self.id, queues=self.queues)

    async def add(self, subscription: Subscription) -> None:
        """Serve one more subscription; returns when emits wake this worker for it.

        Once tried it is served until the worker ends, though the caller may have given up or heard
        an error: jobs of it may be under way.
        """
        self._add(subscription)
        await self._worker.update()

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the worker and wait for its end; see `Worker` for the order. Idempotent."""
        if self._task is None:
            return
        self.request_stop(at_once=at_once)
        await asyncio.wait([self._task])
        self._threads.close()
        if self._worker.ready.is_set():
            _log.info("worker stopped", worker=self.id, claimed=self.claimed)

    def request_stop(self, *, at_once: bool = False) -> None:
        """Ask it to stop; `wait` returns when it has. A second time `at_once` skips the grace."""
        self._worker.stop(at_once=at_once)
        if self._task is not None and not self._is_entered and not self._is_given_up:
            self._is_given_up = True  # once: those that were entered may take their time to leave
            self._task.cancel()  # its lifespans are being entered; nothing was claimed
        if at_once and self._leaving is not None and self._task is not None and not self._task.done():
            self._leaving.reschedule(asyncio.get_running_loop().time())

    async def wait(self) -> None:
        """Wait until the worker has ended; raises what ended it, if it was an error."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def wait_drained(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Wait until nothing of its queues is waiting or due, or runs in this worker.

        `flush` sends what handlers emitted. Two looks in a row must find nothing: the first
        promotes delayed jobs that are due, which only a later one can claim.
        """
        empty = 0
        while empty < 2:
            await flush()
            empty = empty + 1 if await self._worker.claimer.look_through() else 0

    async def note_progress(self, job_id: str, token: str, progress: str) -> None:
        """Record a job's progress under its lease."""
        await self._notes.write(job_id, token, progress)

    async def _run(self) -> None:
        """The worker's life in one task: lifespans entered, jobs run and settled, lifespans left."""
        patience = self._settings.grace + _LAST_STEPS
        leaving = asyncio.timeout(None)
        try:
            async with leaving, AsyncExitStack() as stack:
                try:
                    await self.shared.enter(stack)
                    self._is_entered = True
                    await self._worker.run()
                finally:
                    await self._processes.aclose()
                    self._leaving = leaving
                    leaving.reschedule(asyncio.get_running_loop().time() + patience)
        except TimeoutError as error:
            if not leaving.expired():
                raise
            raise TimeoutError("the worker's lifespans took too long to leave and were cancelled") from error

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        if not self._worker.ready.is_set():
            return  # who starts it hears the error
        if not task.cancelled() and task.exception() is not None:
            _log.error("worker ended by an error", worker=self.id, exc_info=task.exception())

    def _add(self, subscription: Subscription) -> None:
        consumer = Subscriber(
            subscription,
            self._settings,
            self._tools,
            self._sync,
            threads=self._threads,
            processes=self._processes,
            middleware=self._middleware,
        )
        self._consumers[consumer.queue] = consumer
