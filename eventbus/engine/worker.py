"""A worker: the roles that consume queues, started and stopped in one place.

Start: announce -> leases -> claimer -> waker -> rescuer -> announcer -> sweeper; ready when
the announcement was answered and the claimer looks everywhere.
Stop: stop claiming -> end the waker's read -> drain handlers -> give the rest back -> settle ->
wake others for what is left -> end the roles in reverse.

What must hold: a stop ends within the grace and 5 s more, whatever the server and the handlers
do, also while the worker starts; leases are kept until all is settled or the time is over.

Not here: events, payloads, who the handlers are (`Consumer`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import anyio
import msgspec

from eventbus.engine.announcer import Announcer
from eventbus.engine.claimer import Claimer
from eventbus.engine.consumer import Consumer
from eventbus.engine.executor import MAX_ABANDONED
from eventbus.engine.health import Health
from eventbus.engine.leases import LeaseKeeper
from eventbus.engine.rescuer import Rescuer
from eventbus.engine.sweeper import Sweeper
from eventbus.engine.waker import Waker
from eventbus.errors import ProviderStopped
from eventbus.logs import get_logger
from eventbus.store.store import Store

__all__ = ["Worker", "WorkerOptions"]

T = TypeVar("T")

_log = get_logger("eventbus.worker")

_SETTLE_WITHIN = 2.0
"""Seconds that the last settles have at least, however long the drain took."""


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
        self._consumers = consumers
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
            worker=self.id,
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
        self._ended = asyncio.Event()
        self.ready = asyncio.Event()

    async def update(self) -> None:
        """Serve the consumers that were added; returns when they are announced.

        Raises ProviderStopped when the worker stops before that.
        """
        pool = await self._unless(self._stop, self._announcer.run_once(unpark=True))
        if pool is None:
            raise ProviderStopped("the worker stopped before it served what was added")
        self.claimer.pool = pool
        self.claimer.look_everywhere()
        await self._unless(self._stop, self._store.poke(self.id, "pool"))

    def health(self) -> Health:
        """How it is; from any thread."""
        now, heard = time.monotonic(), [self.claimer.answered, self._waker.answered]
        return Health(
            worker=self.id,
            queues=list(self._consumers),
            running=len(self.claimer.executor.running),
            lag=self.leases.lag,
            answered=min((now - each for each in heard if each is not None), default=None),
            connected=self._store.is_connected,
            draining=self._stop.is_set(),
            ended=self._ended.is_set(),
            leases_kept=self.leases.is_kept,
            abandoned=self.claimer.executor.abandoned,
            refused=self.claimer.refused,
            hang_after=self._options.hang_after,
            max_abandoned=MAX_ABANDONED,
        )

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the worker to end; `run` returns when it has. `at_once` skips the grace."""
        if at_once:
            self._stop_now.set()
        self._stop.set()

    async def run(self) -> None:
        """Run until stopped. Raises StoreRefused when the server refuses the worker."""
        try:
            pool = await self._unless(self._stop, self._announcer.run_once(unpark=True))
            if pool is not None:
                self.claimer.pool = pool
                await self._run_roles()
        finally:
            self._ended.set()

    async def _run_roles(self) -> None:
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
        end_of_grace = time.monotonic() + self._options.grace
        self.claimer.stop_claiming()
        self._waker.stop()
        # Beside the drain: without an answer the read ends by itself when its block does.
        poke = asyncio.create_task(self._store.poke(self.id, "stop"))
        try:
            await self._unless(self._stop_now, self.claimer.executor.drain(self._options.grace))
            if self._stop_now.is_set():
                await self.claimer.executor.drain(0)
            await self._settle(end_of_grace)
        finally:
            await _end(poke)

    async def _settle(self, end_of_grace: float) -> None:
        """Settle what has ended, in what is left of the grace and 2 s; 2 s if nothing is known to have."""
        settling = asyncio.create_task(self._settle_and_hand_over())
        at_once = asyncio.create_task(self._stop_now.wait())
        try:
            left = max(0.0, end_of_grace - time.monotonic()) if self.claimer.unsettled else 0.0
            await asyncio.wait([settling, at_once], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([settling], timeout=_SETTLE_WITHIN)
        finally:
            at_once.cancel()
            await _end(settling)
        error = "no answer in time" if settling.cancelled() else settling.exception()
        if error is not None and self.claimer.unsettled:
            _log.error(
                "not everything was settled before the end; rescue will see to it",
                jobs=len(self.claimer.unsettled),
                error=str(error),
            )

    async def _settle_and_hand_over(self) -> None:
        await self.claimer.wait_settled()
        await self._waker.ended.wait()  # what it may have popped is handed over too
        await self.claimer.hand_over()

    async def _unless(self, event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what the work returns; None, and the work ended, if the event comes first."""
        working, coming = asyncio.create_task(work), asyncio.create_task(event.wait())
        try:
            await asyncio.wait([working, coming], return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            coming.cancel()
            await _end(working)

    async def _watch_abandoned(self) -> None:
        """End a worker whose handlers ignore their cancellations."""
        await self.claimer.executor.unhealthy.wait()
        _log.critical("too many handlers ignore their cancellation, worker ends", count=MAX_ABANDONED)
        self._stop.set()


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel the task and wait for its end; its outcome is heard, whatever it is."""
    if task.cancel():
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
