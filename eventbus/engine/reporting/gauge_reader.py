"""The gauge reader of a worker: lets the executor meter jobs while an SDK is set, and reads the lengths of
the queues.

    no SDK -> metering -> reading (one worker of the shard) -> metering

One worker reads all queues of the shard, each 15 s: the one that has the key `gauges`, which it holds for 40
s from each reading on. Others look whether the key is free. So the server answers one reading in 15 s,
whatever the number of workers; it takes some calls for each 200 queues, and none walks the jobs of a queue.
The exporter reads the board and never waits for the server (`telemetry.gauge_board`).

Workers without an SDK do not ask for the key. A worker that reads only its own queues would leave out those
that nobody serves, and these matter most.

What may go wrong:
- the reader dies (`reader-dies`): after 40 s at most another one reads. Until then no worker shows these
  gauges, and its own last readings went with its process;
- the reader cannot reach the server (`reader-away`): it shows nothing, for old lengths would look like a
  queue that stands still. Another worker may read meanwhile; the first one finds the key taken and stays
  silent;
- the key runs out between the look at it and its prolongation (`key-ran-out`): two workers read once. Metrics
  of both show the same lengths for 15 s, and the one that does not have the key gives up at its next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from eventbus.engine.reporting.job_meter import JobMeter
from eventbus.errors import StoreError
from eventbus.model import chance, clock
from eventbus.runtime.upkeep import mark
from eventbus.store.calls.roster import EndedCounts
from eventbus.store.scripting.script_rows import QueueLook
from eventbus.store.store import Store
from eventbus.telemetry.gauge_board import GaugeBoard, Row, boards
from eventbus.telemetry.logging import get_logger
from eventbus.telemetry.metrics import QUEUE_GAUGES, instruments
from eventbus.telemetry.server_address import server_attributes

_log = get_logger("eventbus.worker")

_INTERVAL = 15.0
_HOLD_MS = 40_000
_LOOK = 5.0
"""Seconds between two looks whether an SDK is set."""
_WITHIN = 5.0
"""Seconds that the server has for one reading."""


class _Metered(Protocol):
    """The executor, as far as it is metered."""

    meter: JobMeter | None

    @property
    def running(self) -> Mapping[str, object]: ...


class GaugeReader:
    """Keeps the gauges of one worker, and those of the shard's queues if it is the one that reads them."""

    def __init__(
        self,
        store: Store,
        executor: _Metered,
        *,
        worker: str,
        slots: int,
        read_lag: Callable[[], float],
        interval: float = _INTERVAL,
    ) -> None:
        """`slots`: how many jobs the worker runs at a time. `read_lag` says, in any thread, for how many
        seconds the event loop has owed an answer. `interval`, seconds: between two readings.
        """
        self._store = store
        self._executor = executor
        self._worker = worker
        self._interval = interval
        self._read_at = 0.0
        self._has_failed = False
        self.board: GaugeBoard = GaugeBoard()
        self.board.show("eventbus.worker.slots", [(slots, {})])
        self.board.show_live("eventbus.worker.jobs", lambda: [(len(executor.running), {})])
        self.board.show_live("eventbus.worker.lag", lambda: [(read_lag(), {})])

    def meter(self) -> bool:
        """Let the executor meter its jobs if an SDK is set; return whether one is."""
        made = instruments()
        if made is None:
            self._executor.meter = None
        elif self._executor.meter is None or self._executor.meter.made is not made:
            self._executor.meter = JobMeter(made, self._store.address)
        return made is not None

    async def run_once(self) -> bool:
        """Read the lengths of all queues, if this worker is the one that does. Return whether it is. Raises
        StoreError.
        """
        deadline = clock.monotonic() + _WITHIN
        presence, roster = self._store.presence, self._store.inspection.roster
        if not await presence.take_reading(self._worker, hold_ms=_HOLD_MS, deadline=deadline):
            self.board.clear(*QUEUE_GAUGES)
            return False
        queues = await roster.queues(deadline=deadline)
        looks = await presence.survey(queues, deadline=deadline)
        ended = await roster.ended(queues, deadline=deadline)
        active = await roster.active(deadline=deadline)
        self._show(queues, looks, ended, active, await roster.now(deadline=deadline))
        return True

    def _show(
        self,
        queues: Iterable[str],
        looks: Iterable[QueueLook],
        ended: Iterable[EndedCounts],
        active: Mapping[str, int],
        now_ms: int,
    ) -> None:
        server = server_attributes(self._store.address)
        jobs: list[Row] = []
        ages: list[Row] = []
        workers: list[Row] = []
        for queue, look, kept in zip(queues, looks, ended, strict=True):
            row = {"eventbus.queue": queue, **server}
            counts = {
                "waiting": look.waiting,
                "delayed": look.delayed,
                "active": active.get(queue, 0),
                "parked": look.parked,
                **kept._asdict(),
            }
            jobs.extend((count, {**row, "eventbus.state": state}) for state, count in counts.items())
            ages.append((max(0, now_ms - look.oldest) / 1000 if look.oldest else 0.0, row))
            workers.append((look.workers, row))
        for metric, rows in zip(QUEUE_GAUGES, (jobs, ages, workers), strict=True):
            self.board.show(metric, rows)

    async def run(self) -> None:
        """Meter and read until cancelled; the worker runs this as one of its tasks."""
        mark("always")
        boards[self.board] = asyncio.current_task()
        try:
            while True:
                if self.meter() and clock.monotonic() - self._read_at >= self._interval:
                    await self._read()
                await asyncio.sleep(min(_LOOK, self._interval) * (1 - 0.2 * chance.jitter()))
        finally:
            boards.pop(self.board, None)

    async def _read(self) -> None:
        self._read_at = clock.monotonic()
        try:
            await self.run_once()
            self._has_failed = False
        except StoreError as error:
            self.board.clear(*QUEUE_GAUGES)
            if not self._has_failed:
                self._has_failed = True
                _log.warning("queues not measured, trying again", error=str(error))
