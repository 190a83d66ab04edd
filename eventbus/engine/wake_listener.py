"""The wake listener of a worker: reads the wakes of its pool and the control messages to this worker.

An idle worker waits in one blocked read, which ends when its pool is woken or a message arrives. A busy
worker only polls for messages. Not here: what a wake leads to (`claimer`, `queue_rotation`).

What must always hold: a read is never cancelled while it is under way, because it may have taken a message
along. The worker asks all its queues at least every 4 s, in case a wake was lost with another worker. A
message is news, and never an order: it may come late, when its job has ended and runs again. So nothing is
cancelled for what it says. The hold of the job says which claim is to be cancelled, by its token
(`ask_cancelled`); a job that is handed over is confirmed by its hold, a wake leads to a look at the queue,
and the news of a signal to a look at the inbox.
"""

from __future__ import annotations

import asyncio

from eventbus.engine.claiming.claimer import Claimer
from eventbus.engine.claiming.handed_jobs import ECHO
from eventbus.errors import StoreError, StoreRefused
from eventbus.model import clock
from eventbus.store.connection.translation import TRANSIENT
from eventbus.store.connection.wake_reader import WakeReader
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.worker")

_CANCEL = "cancel:"
_JOB = "job:"
_SIGNAL = "signal:"
_PAUSE = 0.25  # seconds between two polls for messages while a stopping worker's handlers finish

LONGEST = 4.0
"""Seconds; the documented worst case for a job whose wake was lost with another worker."""


class WakeListener:
    """Passes wakes to the claimer, and to its executor cancel requests and the news of signals."""

    def __init__(self, store: Store, claimer: Claimer, *, worker: str) -> None:
        self._store = store
        self._claimer = claimer
        self._worker = worker
        self._is_stopping = False
        self._next_look = clock.monotonic() + LONGEST
        self.answered: float | None = None
        """When a read was last answered, in monotonic seconds; None before the first answer."""
        self.ended: asyncio.Event = asyncio.Event()
        """Set once it takes no more wakes and has passed on the wakes that it took."""

    def stop(self) -> None:
        """Take no more wakes after the read under way; a control message ends that read."""
        self._is_stopping = True

    async def run(self) -> None:
        """Read wakes until stopped; then read only cancel requests until no handler runs."""
        while not self._is_stopping:
            pool = self._claimer.pool
            reader = self._store.open_wakes(pool=pool, worker=self._worker)
            try:
                while not self._is_stopping and self._claimer.pool == pool:
                    await self.run_once(reader)
            finally:
                await reader.aclose()  # it serves one pool, and consumers that are added change the pool
        self.ended.set()
        await self._hear_out()

    async def _hear_out(self) -> None:
        """Read cancel requests while a stopping worker's handlers finish. The reader polls and takes no
        wakes.
        """
        reader = self._store.open_wakes(pool=self._claimer.pool, worker=self._worker)
        try:
            while self._claimer.executor.running:
                await self._hear_all(reader)
                await asyncio.sleep(_PAUSE)
        finally:
            await reader.aclose()

    async def _hear_all(self, reader: WakeReader) -> None:
        try:
            while (message := await reader.poll()) is not None:
                self._hear(reader, *message)
        except StoreError:
            pass  # the answer to the next renewal names the cancelled jobs too

    async def run_once(self, reader: WakeReader) -> None:
        """Read once and act on it: block while the worker is idle, only poll for messages while it
        has work.
        """
        is_quiet = await self._claimer.wait_quiet()
        if self._is_stopping:
            return
        try:
            message = await (reader.wait(LONGEST) if is_quiet else reader.poll())
            while message is not None and not is_quiet:
                self._hear(reader, *message)
                message = await reader.poll()  # take them all now: many jobs may be cancelled at once
        except StoreError as error:
            if isinstance(error, StoreRefused) and error.code not in TRANSIENT:
                _log.error("wakes refused, looking at the queues each second", error=str(error))
                self._claimer.executor.teller.error("wake_listener", error)
                await asyncio.sleep(1)
            # The connection of the claimer logs the failure. This pause only limits the rate of reads.
            await asyncio.sleep(0.2)
            self._look_everywhere()
            return
        self.answered = clock.monotonic()
        if message is not None:
            self._hear(reader, *message)
        # A worker that always finds work in some queues must ask the others too.
        if (message is None and is_quiet) or self.answered >= self._next_look:
            self._look_everywhere()

    def _hear(self, reader: WakeReader, source: str, message: str) -> None:
        if source == "wake":
            self._claimer.notice(message)
        elif message.startswith(_CANCEL):
            reader.ask_cancelled(message.removeprefix(_CANCEL), self._claimer.executor.cancel)
        elif message.startswith(_SIGNAL):
            self._claimer.executor.tell(message.removeprefix(_SIGNAL))
        elif message.startswith(_JOB):
            self._take(reader, message.removeprefix(_JOB))
        elif message == ECHO:
            self._claimer.handed.heard.set()

    def _take(self, reader: WakeReader, message: str) -> None:
        """Confirm a job that was handed to this worker, and start it: at once, unless it may have been given
        back.
        """
        claimer = self._claimer
        job = claimer.handed.read(message)
        if job is None:
            _log.error("message dropped that brings no job", message=message[:100])
        elif claimer.handed.is_late(job):
            reader.confirm(
                self._worker,
                job.id,
                lambda is_ours: claimer.start_handed(job) if is_ours else None,
                is_running=False,
            )
        else:
            claimer.start_handed(job)
            leases = [(job.id, job.token)]
            reader.confirm(
                self._worker, job.id, lambda is_ours: None if is_ours else claimer.executor.lose(leases)
            )

    def _look_everywhere(self) -> None:
        self._next_look = clock.monotonic() + LONGEST
        self._claimer.look_everywhere()
