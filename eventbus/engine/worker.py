"""The engine's worker: starts and stops the roles that consume queues.

Start: announce -> leases -> claimer -> wake_listener -> rescuer -> presence -> sweeper -> operations
-> recorder -> gauges. The worker is ready once the announcement was answered and the claimer asks every
queue.
Stop: stop claiming -> leave the pool in the server and end the wake listener's read -> drain the handlers
-> give the rest back -> settle -> wake other workers for the queues with work -> end the roles
-> send the last tallies, and deregister.

Not here: events and payloads, and the handlers (`Consumer`).

What must always hold: a stop ends within the grace and 5 s more, whatever the server and the handlers do,
also while the worker starts; leases are kept until everything is settled or that time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import anyio
import msgspec

from eventbus.engine.claiming.claimer import Claimer
from eventbus.engine.consumer import Consumer
from eventbus.engine.drain import Drain, HandlerWait
from eventbus.engine.executor import MAX_ABANDONED
from eventbus.engine.lease_keeper import LeaseKeeper
from eventbus.engine.operation_runner import OperationRunner
from eventbus.engine.presence import Presence
from eventbus.engine.reporting.failure_listener import FailureListener
from eventbus.engine.reporting.gauge_reader import GaugeReader
from eventbus.engine.reporting.health import Health
from eventbus.engine.reporting.history_recorder import HistoryRecorder
from eventbus.engine.reporting.tallies import Tallies
from eventbus.engine.rescuer import Rescuer
from eventbus.engine.sweeper import Sweeper
from eventbus.engine.wake_listener import WakeListener
from eventbus.errors import ProviderStopped
from eventbus.model import chance, clock
from eventbus.model.windows import Windows
from eventbus.runtime.clean_up import run_to_end
from eventbus.settings.settings import Settings
from eventbus.store.store import Store
from eventbus.telemetry.listeners import Teller
from eventbus.telemetry.logging import get_logger

T = TypeVar("T")

_log = get_logger("eventbus.worker")

_SETTLE_WITHIN = 2.0
"""Seconds that the last settles get at least, also when the drain used up the whole grace."""


class WorkerOptions(msgspec.Struct, frozen=True):
    """The settings of one worker. Times are in seconds."""

    max_concurrency: int
    lease: float
    hang_after: float
    grace: float
    max_stalls: int
    key_ttl: float
    patience: float = 1.0
    history: Windows | None = None

    @classmethod
    def of(cls, settings: Settings) -> WorkerOptions:
        """Return those that the settings of a provider name."""
        return cls(
            max_concurrency=settings.max_concurrency,
            lease=settings.lease,
            hang_after=settings.hang_after,
            grace=settings.grace,
            max_stalls=settings.max_stalls,
            key_ttl=settings.key_ttl,
            history=settings.history,
        )


class Duty(Protocol):
    """A role of workers for what is due but is no job."""

    def notice(self) -> None:
        """Hear that something is due."""
        ...

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        ...


class Worker:
    """Consumes queues until it is stopped. An object runs once."""

    def __init__(
        self,
        store: Store,
        consumers: Mapping[str, Consumer],
        options: WorkerOptions,
        *,
        find_waits: Callable[[], Iterable[HandlerWait]] = tuple,
        duty: Duty | None = None,
        teller: Teller | None = None,
        declare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`consumers` maps queues to their consumers; call `update` after adding some. `find_waits`: see
        `Drain`.

        `duty` is one more role; it is told when schedules are due. `teller` tells listeners what the worker
        does. `declare` tells the server what the program declares; it is called when the server has forgotten
        that.
        """
        self.id: str = chance.token(6)
        self.teller: Teller = teller or Teller()
        self._store = store
        self._consumers = consumers
        self._options = options
        lease_ms = round(options.lease * 1000)
        tallies = Tallies() if options.history else None
        self.claimer: Claimer = Claimer(
            store,
            consumers,
            worker=self.id,
            lease_ms=lease_ms,
            max_concurrency=options.max_concurrency,
            patience=options.patience,
            on_duty=duty.notice if duty else None,
            tallies=tallies,
            teller=self.teller,
        )
        self._duty = duty
        self.leases: LeaseKeeper = LeaseKeeper(
            store,
            self.claimer.executor,
            worker=self.id,
            unsettled=self.claimer.settles.unsettled,
            read_calls=self.claimer.read_calls,
            lease=options.lease,
            hang_after=options.hang_after,
        )
        self._drain = Drain(store, self.claimer.executor, worker=self.id, find_waits=find_waits)
        self._wake_listener = WakeListener(store, self.claimer, worker=self.id)
        self._rescuer = self._make_rescuer(lease_ms)
        self._presence = Presence(
            store,
            consumers,
            worker=self.id,
            read_jobs=self.claimer.read_jobs,
            closed=self.claimer.retirement.closed,
            teller=self.teller,
            concurrency=options.max_concurrency,
            declare=declare,
        )
        self._sweeper = Sweeper(store, consumers, teller=self.teller)
        self._operations = OperationRunner(
            store, key_ttl_ms=round(options.key_ttl * 1000), teller=self.teller
        )
        self._recorder = HistoryRecorder(store, tallies, consumers, worker=self.id, windows=options.history)
        self._stop_now = asyncio.Event()
        self.stopping: asyncio.Event = asyncio.Event()
        self._ended = asyncio.Event()
        self.ready: asyncio.Event = asyncio.Event()

    def tell_failures(self, failures: FailureListener) -> None:
        """Have `failures` hear of the jobs that fail here, from now on; it may be called before the start
        alone.
        """
        self.claimer.settles.failures = self._rescuer.failures = failures

    def _make_rescuer(self, lease_ms: int) -> Rescuer:
        return Rescuer(
            self._store,
            lease_ms=lease_ms,
            max_stalls=self._options.max_stalls,
            key_ttl_ms=round(self._options.key_ttl * 1000),
            consumers=self._consumers,
            teller=self.teller,
        )

    async def update(self) -> None:
        """Serve the consumers that were added, and not the closed queues; return when the server knows of it.

        Raises ProviderStopped if the worker stops before that.
        """
        pool = await self._unless(self.stopping, self._presence.run_once(unpark=True))
        if pool is None:
            raise ProviderStopped("the worker stopped before the server knew of its queues")
        self.claimer.pool = pool
        self.claimer.look_everywhere()
        # Ends the wake listener's blocked read, which still waits for the wakes of the former pool.
        await self._unless(self.stopping, self._store.poke(self.id, "pool"))

    async def retire(self, queue: str) -> bool:
        """Claim no more jobs of a queue, and wait until those that run here have ended and are settled.

        Return False if the queue was opened again meanwhile; otherwise nothing needs its consumer any more.
        The wakes of the queue that this worker knew of go to the other workers of its pool.
        """
        pool = self.claimer.pool
        self.claimer.retirement.close(queue)
        try:
            await self.update()
            await self._store.rearm(pool, [queue])
        except ProviderStopped:
            pass  # a worker that stops leaves its pools, and ends its jobs
        return await self.claimer.retirement.finish(queue)

    def health(self) -> Health:
        """Return the state of the worker; may be called from any thread."""
        now, answers = clock.monotonic(), [self.claimer.answered, self._wake_listener.answered]
        return Health(
            worker=self.id,
            queues=list(self._consumers),
            running=len(self.claimer.executor.running),
            lag=self.leases.lag,
            answered=min((now - at for at in answers if at is not None), default=None),
            connected=self._store.is_connected,
            draining=self.stopping.is_set(),
            ended=self._ended.is_set(),
            leases_kept=self.leases.is_kept,
            abandoned=self.claimer.executor.abandoned,
            refused=self.claimer.settles.refused,
            hang_after=self._options.hang_after,
            max_abandoned=MAX_ABANDONED,
        )

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the worker to stop; `run` returns once it has. `at_once` skips the grace. Idempotent."""
        if at_once:
            self._stop_now.set()
        self.stopping.set()

    async def run(self) -> None:
        """Run until stopped. Raises StoreRefused if the server refuses the worker."""
        try:
            pool = await self._unless(self.stopping, self._presence.run_once(unpark=True))
            if pool is None:
                await self._presence.leave()  # the announcement may have reached the server
                return
            self.claimer.pool = pool
            await self._run_roles()
            await asyncio.gather(self._recorder.finish(), self._presence.deregister())
        finally:
            self._ended.set()

    async def _run_roles(self) -> None:
        self.leases.start()
        gauges = GaugeReader(
            self._store,
            self.claimer.executor,
            worker=self.id,
            slots=self._options.max_concurrency,
            read_lag=lambda: self.leases.lag,
        )
        gauges.meter()  # before the first job
        try:
            async with anyio.create_task_group() as roles:
                roles.start_soon(self.claimer.run, name="claimer")
                roles.start_soon(self._wake_listener.run, name="wake_listener")
                roles.start_soon(self._rescuer.run, name="rescuer")
                roles.start_soon(self._presence.run, name="presence")
                roles.start_soon(self._sweeper.run, name="sweeper")
                roles.start_soon(self._operations.run, name="operations")
                roles.start_soon(self._recorder.run, name="recorder")
                roles.start_soon(gauges.run, name="gauges")
                roles.start_soon(self._watch_abandoned, name="abandoned")
                if self.teller.is_on:
                    roles.start_soon(self.teller.run, name="listeners")
                if self._duty is not None:
                    roles.start_soon(self._duty.run, name="schedules")
                self.claimer.look_everywhere()
                self.ready.set()
                await self.stopping.wait()
                await self._shut_down()
                roles.cancel_scope.cancel()
        finally:
            # After a drain nothing runs. After an error nothing renews the leases, so cancel what runs.
            self.claimer.executor.abort()
            self.claimer.executor.deadlines.close()
            await run_to_end(self.leases.aclose(), "leases")

    async def _shut_down(self) -> None:
        end_of_grace = clock.monotonic() + self._options.grace
        self.claimer.stop_claiming()
        self._wake_listener.stop()
        # Both run beside the drain, because the server may not answer. The wake listener's read then ends
        # by itself when its block time is over.
        poke = asyncio.create_task(self._store.poke(self.id, "stop"))
        leaving = asyncio.create_task(self._presence.leave())
        try:
            await self._unless(self._stop_now, self._drain.wait_finished(self._options.grace))
            await self._drain.hand_back()
            await self._settle(end_of_grace)
            await asyncio.wait([leaving])
        finally:
            await _end(poke)
            await _end(leaving)

    async def _settle(self, end_of_grace: float) -> None:
        """Settle the jobs that ended, within the rest of the grace and 2 s; within 2 s if none waits to be
        settled.
        """
        settling = asyncio.create_task(self._settle_and_hand_over())
        at_once = asyncio.create_task(self._stop_now.wait())
        try:
            left = max(0.0, end_of_grace - clock.monotonic()) if self.claimer.settles.unsettled else 0.0
            await asyncio.wait([settling, at_once], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([settling], timeout=_SETTLE_WITHIN)
        finally:
            at_once.cancel()
            await _end(settling)
        error = "no answer in time" if settling.cancelled() else settling.exception()
        if error is not None and self.claimer.settles.unsettled:
            _log.error(
                "not everything was settled before the end; rescue will see to it",
                jobs=len(self.claimer.settles.unsettled),
                error=str(error),
            )

    async def _settle_and_hand_over(self) -> None:
        await self.claimer.settled.wait()
        await self._wake_listener.ended.wait()  # a wake that it popped last must be handed over too
        await self.claimer.hand_over()

    async def _unless(self, event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`, or cancel it and return None if `event` is set first."""
        working, coming = asyncio.create_task(work), asyncio.create_task(event.wait())
        try:
            await asyncio.wait([working, coming], return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            coming.cancel()
            await _end(working)

    async def _watch_abandoned(self) -> None:
        """Stop the worker when too many of its handlers ignored their cancellations."""
        await self.claimer.executor.unhealthy.wait()
        _log.critical("too many handlers ignore their cancellation, worker ends", count=MAX_ABANDONED)
        self.stopping.set()


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel the task and wait for its end; retrieve its error, so that asyncio does not log it."""
    if task.cancel():
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
