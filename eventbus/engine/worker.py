"""A worker: the roles that consume queues, started and stopped in one place.

Start: announce -> leases -> claimer -> waker -> rescuer -> announcer -> sweeper; ready when
the announcement was answered and the claimer looks everywhere.
Stop, within a deadline: stop claiming -> end the waker's read -> drain handlers -> give the
rest back -> settle -> wake others for what is left -> end the roles in reverse.

Not here: events, payloads, who the handlers are (`Consumer`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

import anyio
import msgspec
import structlog

from eventbus.engine.announcer import Announcer
from eventbus.engine.claimer import Claimer
from eventbus.engine.consumer import Consumer
from eventbus.engine.executor import MAX_ABANDONED
from eventbus.engine.leases import LeaseKeeper
from eventbus.engine.rescuer import Rescuer
from eventbus.engine.sweeper import Sweeper
from eventbus.engine.waker import Waker
from eventbus.errors import StoreError
from eventbus.store.store import Store

__all__ = ["Worker", "WorkerOptions"]

_log = structlog.get_logger("eventbus.worker")


class WorkerOptions(msgspec.Struct, frozen=True):
    """What a worker needs to know beside its consumers. Times in seconds."""

    max_concurrency: int
    lease: float
    hang_after: float
    grace: float
    max_stalls: int
    key_ttl: float
    patience: float = 1.0


class Worker:
    """Consumes queues until stopped. One run for each object."""

    def __init__(self, store: Store, consumers: Mapping[str, Consumer], options: WorkerOptions) -> None:
        """`consumers` may grow while the worker runs; call `update` then."""
        self.id = secrets.token_hex(6)
        self._store = store
        self._options = options
        lease_ms = round(options.lease * 1000)
        self.claimer = Claimer(
            store,
            consumers,
            worker=self.id,
            lease_ms=lease_ms,
            max_concurrency=options.max_concurrency,
            patience=options.patience,
        )
        self.leases = LeaseKeeper(
            store,
            self.claimer.executor,
            unsettled=self.claimer.unsettled,
            lease=options.lease,
            hang_after=options.hang_after,
        )
        self._waker = Waker(store, self.claimer, worker=self.id)
        self._rescuer = Rescuer(
            store, lease_ms=lease_ms, max_stalls=options.max_stalls, key_ttl_ms=round(options.key_ttl * 1000)
        )
        self._announcer = Announcer(store, consumers)
        self._sweeper = Sweeper(store, consumers)
        self._stop_now = asyncio.Event()
        self._stop = asyncio.Event()
        self.ready = asyncio.Event()

    async def update(self) -> None:
        """Serve the consumers that were added; returns when they are announced."""
        self.claimer.pool = await self._announcer.run_once(unpark=True)
        self.claimer.look_everywhere()
        await self._store.poke(self.id, "pool")

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the worker to end; `run` returns when it has. `at_once` skips the grace."""
        if at_once:
            self._stop_now.set()
        self._stop.set()

    async def run(self) -> None:
        """Run until stopped. Raises StoreRefused when the server refuses the worker."""
        self.claimer.pool = await self._announcer.run_once(unpark=True)
        self.leases.start()
        try:
            async with anyio.create_task_group() as roles:
                roles.start_soon(self.claimer.run, name="claimer")
                roles.start_soon(self._waker.run, name="waker")
                roles.start_soon(self._rescuer.run, name="rescuer")
                roles.start_soon(self._announcer.run, name="announcer")
                roles.start_soon(self._sweeper.run, name="sweeper")
                roles.start_soon(self._watch_abandoned, name="abandoned")
                self.claimer.look_everywhere()
                self.ready.set()
                await self._stop.wait()
                await self._shut_down()
                roles.cancel_scope.cancel()
        finally:
            # After a drain there are none; after an error nobody would keep their leases.
            self.claimer.executor.abort()
            self.claimer.executor.deadlines.close()
            await self.leases.aclose()

    async def _shut_down(self) -> None:
        self.claimer.stop_claiming()
        self._waker.stop()
        try:
            async with asyncio.timeout(1):
                await self._store.poke(self.id, "stop")
        except (TimeoutError, StoreError):
            pass  # the read ends by itself when its block does
        await self._drain()
        try:
            async with asyncio.timeout(self._options.grace + 2):
                await self.claimer.wait_settled()
                await self._waker.ended.wait()  # what it may have popped is handed over too
                await self.claimer.hand_over()
        except (TimeoutError, StoreError) as error:
            _log.error("not everything was settled before the end; rescue will see to it", error=str(error))

    async def _drain(self) -> None:
        """Drain within the grace period, or less when told to stop at once."""
        drain = asyncio.create_task(self.claimer.executor.drain(self._options.grace))
        now = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait([drain, now], return_when=asyncio.FIRST_COMPLETED)
        now.cancel()
        if not drain.done():
            drain.cancel()
            await asyncio.wait([drain])
            await self.claimer.executor.drain(0)

    async def _watch_abandoned(self) -> None:
        """End a worker whose handlers ignore their cancellations."""
        await self.claimer.executor.unhealthy.wait()
        _log.critical("too many handlers ignore their cancellation, worker ends", count=MAX_ABANDONED)
        self._stop.set()
