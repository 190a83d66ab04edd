"""The worker of a provider: runs the engine's worker with the provider's handlers, inside its lifespans.

    entering lifespans -> running -> leaving lifespans -> ended
                                                       -> left behind: a lifespan ignores its cancellations

Not here: how jobs are claimed, run and settled (`engine.worker`), and how a handler is called (`consumer`).

What must always hold: the worker ends in time, whatever its lifespans do. A stop cancels a lifespan that is
being entered. Lifespans have the grace and 2 s to be left, from the end of the engine's worker on, or from
the stop on if they were still being entered. After that the task is cancelled, and cancelled again one second
later. One more second later the task is left behind: those who wait for the end go on without it, and the log
names the lifespan. One task enters, runs and leaves everything, because a lifespan may hold cancel scopes. So
the lifespans around one that hangs cannot be left either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import MappingProxyType

import anyio

from eventbus.engine.consumer import Consumer
from eventbus.engine.drain import HandlerWait
from eventbus.engine.executor import Running
from eventbus.engine.job import Job
from eventbus.engine.reporting.health import Health
from eventbus.engine.worker import Worker, WorkerOptions
from eventbus.errors import ProviderStopped
from eventbus.handlers.batches.consumer import BatchConsumer
from eventbus.handlers.consumer import HandlerConsumer
from eventbus.handlers.extension import Extension, WorkerServices
from eventbus.handlers.failures.desk import FailureDesk
from eventbus.handlers.failures.hook import FailureHook
from eventbus.handlers.lifespan import Lifespan, Shared
from eventbus.handlers.middleware import Middleware
from eventbus.handlers.pools import PoolSpec
from eventbus.handlers.process.handler import log_note
from eventbus.handlers.subscriptions import Subscription
from eventbus.handlers.worker_host import Bus, WorkerHost
from eventbus.handlers.worker_pools import WorkerPools
from eventbus.runtime.process_pool import ProcessPool
from eventbus.runtime.thread_pool import ThreadPool
from eventbus.schedules.runner import ScheduleRunner
from eventbus.settings.settings import Settings
from eventbus.store.store import Store
from eventbus.telemetry.listeners import Listeners, Teller
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.worker")

_LAST_STEPS = 2.0
"""Seconds beyond the grace that lifespans have to be left."""
_LOOK = 0.1
"""Seconds between two looks whether a limit still holds jobs back."""
_PATIENCE = 1.0
"""Seconds that a lifespan has to end after each cancellation."""

_make_processes = partial(ProcessPool, log_note)


class EventWorker:
    """A running worker of this process. `provider.worker()` makes it, starts it and stops it.

    It claims jobs of its queues and runs the provider's handlers on them, until it is stopped.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        bus: Bus,
        find_loop: Callable[[str], asyncio.AbstractEventLoop],
        middleware: Sequence[Middleware] = (),
        lifespans: Sequence[Lifespan] = (),
        pools: Mapping[str, PoolSpec] = MappingProxyType({}),
        make_processes: Callable[[], ProcessPool] = _make_processes,
        failure_hooks: Sequence[FailureHook] = (),
        find_waits: Callable[[], Iterable[HandlerWait]] = tuple,
        listeners: Listeners | None = None,
        declare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`bus` is the provider, and `find_loop` that of `WorkerHost`. `declare` tells the server what the
        program declares; called when the server has forgotten it.
        """
        self.shared: Shared = Shared(lifespans, bus)
        self._store = store
        self._settings = settings
        self._middleware = middleware
        self._threads = ThreadPool(settings.max_concurrency)
        self._processes = make_processes()
        self._consumers: dict[str, Consumer] = {}
        options, told = WorkerOptions.of(settings), Teller(listeners)
        duty = ScheduleRunner(store, key_ttl=settings.key_ttl, teller=told)
        self._worker = Worker(
            store, self._consumers, options, find_waits=find_waits, duty=duty, teller=told, declare=declare
        )
        told.worker = self._worker.id
        self._failures = FailureDesk(failure_hooks, store, self._consumers, self.id, grace=settings.grace)
        if failure_hooks:
            self._worker.tell_failures(self._failures)
        self._pools = WorkerPools(pools, self._processes, make_processes, on_room=self._worker.claimer.notice)
        self.host: WorkerHost = WorkerHost(bus, self.shared, self._worker, store, settings, find_loop)
        """What it does for its attempts."""
        self.append: Callable[..., asyncio.Future[str]] = self._worker.claimer.append
        """Appends to the journal of a job that runs in this worker, as `AppendQueue.put` does."""
        self._task: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        """Done when the task has ended or was left behind; holds the error that ended it, if there
        was one.
        """
        self._is_entered = False
        self._is_given_up = False
        self._clock: asyncio.TimerHandle | None = None
        """Runs while lifespans have time to be left; its end makes the next strike."""
        self._strikes = 0
        self._error: BaseException | None = None

    @property
    def id(self) -> str:
        """The id of the worker, as it stands in leases, log events and spans."""
        return self._worker.id

    @property
    def queues(self) -> list[str]:
        """The names of the queues that the worker serves, such as `event.order.placed`."""
        return list(self._consumers)

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits to be settled, and no queue is known to have work."""
        return self._worker.claimer.is_idle

    @property
    def claimed(self) -> int:
        """How many jobs the worker has claimed since its start."""
        return self._worker.claimer.claimed

    def health(self) -> Health:
        """Return the state of the worker now, with its problems. May be called from any thread."""
        return self._worker.health()

    async def start(
        self, subscriptions: Iterable[Subscription], extensions: Iterable[tuple[Extension, str]] = ()
    ) -> None:
        """Start the worker and return when it is ready. Called once, by the provider.

        Raises the error of a lifespan, DefinitionError, StoreRefused, or ProviderStopped if a stop comes
        first.
        """
        self.host.open()
        for subscription in subscriptions:
            self._add(subscription)
        services = WorkerServices(
            self._settings,
            self.host,
            self._threads,
            self.id,
            self._worker.stopping.is_set,
            self._worker.claimer.executor.aliases,
            self._pools,
            self._worker.claimer.executor.start_clock,
        )
        for extension, queue in extensions:
            self._consumers[queue] = extension.make_consumer(queue, services)
        self._ended = ended = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name="eventbus-worker")
        self._task.add_done_callback(self._on_ended)
        ready = asyncio.create_task(self._worker.ready.wait())
        try:
            await asyncio.wait([ended, ready], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not self._worker.ready.is_set():
            if not ended.cancelled():
                await ended
            raise ProviderStopped("the worker was stopped before it was ready")
        _log.info("worker ready", worker=self.id, queues=self.queues)

    async def add(self, subscription: Subscription) -> None:
        """Serve one more subscription, for the provider; return when emits of it wake this worker.

        The worker serves it until its end, also if this call is cancelled or raises, because jobs of it may
        run already. Raises ProviderStopped if the worker stops before it is announced, and StoreRefused.
        """
        self._add(subscription)
        await self._worker.update()

    async def remove(self, queue: str) -> None:
        """Serve a queue no more; return when its jobs that ran here have ended and are settled.

        Does nothing for a queue that this worker does not serve. A subscription that is added meanwhile is
        served.
        """
        consumer = self._consumers.get(queue)
        if consumer is None:
            return
        if await self._worker.retire(queue) and self._consumers.get(queue) is consumer:
            del self._consumers[queue]
            _log.info("queue no longer served", worker=self.id, queue=queue)

    def has_job_of(self, queue: str, job_id: str) -> bool:
        """Whether the job of this id, or the one in whose name it emits, runs here and is of this queue."""
        run = self._worker.claimer.executor.find(job_id)
        return run is not None and run.job.queue == queue

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the worker and wait for its end. `at_once` skips the grace. Idempotent; never raises its
        error.

        The order: it claims no more, handlers finish within the grace, the rest is given back, everything is
        settled, and the lifespans are left.
        """
        if self._ended is None:
            return
        self.request_stop(at_once=at_once)
        await asyncio.wait([self._ended])
        self._threads.close()
        if self._worker.ready.is_set():
            _log.info("worker stopped", worker=self.id, claimed=self.claimed)

    def request_stop(self, *, at_once: bool = False) -> None:
        """Ask the worker to stop, and return at once; `wait` returns when it has ended.

        Idempotent. A second call with `at_once` skips the rest of the grace.
        """
        self._worker.stop(at_once=at_once)
        self._failures.begin_stop(at_once=at_once)
        if self._task is None or self._task.done():
            return
        if not self._is_entered and not self._is_given_up:
            # Cancel only once, because the lifespans that were entered so far have their time to be left.
            self._is_given_up = True
            self._task.cancel()  # lifespans are still being entered, so nothing was claimed
            self._start_clock()
        elif at_once and self._clock is not None and not self._strikes:
            self._strike()

    async def wait(self) -> None:
        """Wait until the worker has ended. Raises the error that ended it, if there was one.

        If the caller is cancelled, only its waiting ends.
        """
        if self._ended is not None:
            await asyncio.shield(self._ended)  # many callers may wait for this future

    async def wait_drained(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Wait until its queues have no waiting or due job, and none of their jobs runs in this worker.

        What a limit holds back is waited for. A paused queue is not: nobody knows when it goes on. A job that
        is suspected of ending its workers may be left, if another worker makes room for it or died doing so.

        `flush` must send the emissions of handlers that are still unsent: pass `provider.flush`. Delayed jobs
        that are not due yet do not count.
        """
        # Two looks in a row must find nothing: the first promotes due jobs, which only a later one can claim.
        empty = 0
        while empty < 2:
            await flush()
            empty = empty + 1 if await self._worker.claimer.look_through() else 0
            if empty == 2 and await self._store.controls.is_held_back(self._consumers):
                empty = 0
                await asyncio.sleep(_LOOK)

    def running(self, job: Job) -> Running | None:
        """Return what runs this very job in this worker; None if it has ended, or its lease was lost."""
        run = self._worker.claimer.executor.running.get(job.id)
        return run if run is not None and run.job.token == job.token else None

    async def _run(self) -> None:
        """Enter the lifespans, run the worker until it ends, and leave the lifespans, all in one task."""
        try:
            async with AsyncExitStack() as stack:
                try:
                    await self.shared.enter(stack)
                    self._is_entered = True
                    if self._strikes < 3:  # otherwise it was left behind, and its lifespan returned too late
                        await self._worker.run()
                except asyncio.CancelledError:
                    raise
                except BaseException as error:  # one that a signal handler raised in a role, too
                    self._error = error
                    self._worker.teller.error("worker", error)
                    raise
                finally:
                    # A lifespan may hold a cancel scope of anyio, which would cancel each of these waits.
                    with anyio.CancelScope(shield=True):
                        await self._failures.finish()
                        await self._pools.aclose()
                        self._start_clock()
                        await self._worker.teller.tell_rest()
        except asyncio.CancelledError:
            if not self._strikes:
                raise
            # A strike cancelled the lifespans; that is no cancellation for those who wait for the worker.
            if self._error is not None:
                raise self._error from None

    def _start_clock(self) -> None:
        """Give the lifespans the grace and 2 s from now on. Only the first call counts."""
        if self._clock is None:
            patience = self._settings.grace + _LAST_STEPS
            self._clock = asyncio.get_running_loop().call_later(patience, self._strike)

    def _strike(self) -> None:
        """Cancel the lifespans, whose time is over; the third strike leaves them behind."""
        assert self._task is not None  # noqa: S101  (started)
        assert self._clock is not None  # noqa: S101
        self._clock.cancel()
        self._strikes += 1
        if self._strikes < 3:
            if self._strikes == 1:
                _log.error("lifespan takes too long, cancelled", worker=self.id, lifespan=self.shared.current)
            self._task.cancel()
            self._clock = asyncio.get_running_loop().call_later(_PATIENCE, self._strike)
            return
        _log.error(
            "lifespan ignores its cancellation, left behind", worker=self.id, lifespan=self.shared.current
        )
        self._end(self._error)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        self._threads.close()  # here, because the caller of `stop` may have stopped waiting
        if self._clock is not None:
            self._clock.cancel()
        if task.cancelled():
            if self._ended is not None:
                self._ended.cancel()
        else:
            self._end(task.exception())

    def _end(self, error: BaseException | None) -> None:
        """Notify those who wait for the end. Only the first call counts: a task left behind may end later."""
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
            return
        self._ended.set_exception(error)
        self._ended.exception()  # marks it as retrieved: asyncio must not warn if no caller waits
        if self._worker.ready.is_set():  # otherwise `start` raises the error
            _log.error("worker ended by an error", worker=self.id, exc_info=error)

    def _add(self, subscription: Subscription) -> None:
        make: Callable[..., HandlerConsumer] = HandlerConsumer
        if subscription.handler.batch is not None:
            make = partial(BatchConsumer, on_room=self._worker.claimer.notice)
        consumer = make(
            subscription,
            self._settings,
            self.host,
            threads=self._threads,
            processes=self._processes,
            pools=self._pools,
            set_clock=self._worker.claimer.executor.set_clock,
            middleware=self._middleware,
            worker=self.id,
        )
        self._consumers[consumer.queue] = consumer
        self._worker.claimer.retirement.open(consumer.queue)


# For the test kit: the worker itself has only what is for users.


def is_running(worker: EventWorker) -> bool:
    """Whether a job runs."""
    engine = worker._worker  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return bool(engine.claimer.executor.running)


def look_due(worker: EventWorker) -> None:
    """Look for what is due in the server, before the worker's own timer says so."""
    worker._worker.claimer.due.ring()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def end_threads(worker: EventWorker) -> None:
    """Let a worker that was abandoned begin nothing more in its threads; what runs there goes on to its
    end.
    """
    worker._threads.close()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    worker._pools.close_threads()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def consumer_of(worker: EventWorker, queue: str) -> Consumer | None:
    """Return what runs the jobs of a queue; None if the worker does not serve it."""
    return worker._consumers.get(queue)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
