"""The blocked read of a worker: ends when its pool is woken or a message comes for it."""

from __future__ import annotations

import asyncio
import time

import anyio

from eventbus.engine.claimer import Claimer
from eventbus.errors import StoreError, StoreRefused
from eventbus.logs import get_logger
from eventbus.store.connection import TRANSIENT
from eventbus.store.store import Store, WakeReader

__all__ = ["Waker"]

_log = get_logger("eventbus.worker")

_CANCEL = "cancel:"
_PAUSE = 0.25

LONGEST = 4.0
"""The stated worst case for work whose wake was lost with another worker, seconds."""


class Waker:
    """Tells the claimer where work is, while it does not know by itself."""

    def __init__(self, store: Store, claimer: Claimer, *, worker: str) -> None:
        self._store = store
        self._claimer = claimer
        self._worker = worker
        self._is_stopping = False
        self._next_look = time.monotonic() + LONGEST
        self.answered: float | None = None
        """When a read was last answered, monotonic seconds."""
        self.ended = asyncio.Event()
        """Set when it takes no more wakes, and has told those it took."""

    def stop(self) -> None:
        """Leave after the read under way, which a control message ends."""
        self._is_stopping = True

    async def run(self) -> None:
        """Wait for wakes until stopped. A read is never cancelled in flight but woken."""
        while not self._is_stopping:
            pool = self._claimer.pool
            reader = self._store.open_wakes(pool=pool, worker=self._worker)
            try:
                while not self._is_stopping and self._claimer.pool == pool:
                    await self.run_once(reader)
            finally:
                await reader.aclose()
        self.ended.set()
        await self._hear_out()

    async def _hear_out(self) -> None:
        """While a stopping worker's handlers finish, hear their cancellations; wakes are left to others."""
        reader = self._store.open_wakes(pool=self._claimer.pool, worker=self._worker)
        try:
            while self._claimer.executor.running:
                await self._hear_all(reader)
                await asyncio.sleep(_PAUSE)
        finally:
            with anyio.CancelScope(shield=True):
                await reader.aclose()

    async def _hear_all(self, reader: WakeReader) -> None:
        try:
            while (message := await reader.poll()) is not None:
                self._hear(*message)
        except StoreError:
            pass  # the next renewal tells what was cancelled

    async def run_once(self, reader: WakeReader) -> None:
        """One read and what follows from it: a blocked one, or a look for messages while there is work."""
        is_quiet = await self._claimer.wait_quiet()
        if self._is_stopping:
            return
        try:
            message = await (reader.wait(LONGEST) if is_quiet else reader.poll())
            while message is not None and not is_quiet:
                self._hear(*message)
                message = await reader.poll()  # they may be many, and all are urgent
        except StoreError as error:
            if isinstance(error, StoreRefused) and error.code not in TRANSIENT:
                _log.error("wakes refused, looking at the queues each second", error=str(error))
                await asyncio.sleep(1)
            # The claimer's connection logs the trouble; here only the pace is kept.
            await asyncio.sleep(0.2)
            self._look_everywhere()
            return
        self.answered = time.monotonic()
        if message is not None:
            self._hear(*message)
        # A worker that always finds work in some queues must look at the others too.
        if (message is None and is_quiet) or self.answered >= self._next_look:
            self._look_everywhere()

    def _hear(self, source: str, message: str) -> None:
        if source == "wake":
            self._claimer.notice(message)
        elif message.startswith(_CANCEL):
            self._claimer.executor.cancel([message.removeprefix(_CANCEL)])

    def _look_everywhere(self) -> None:
        self._next_look = time.monotonic() + LONGEST
        self._claimer.look_everywhere()
