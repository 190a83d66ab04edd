"""The sweeper of a worker: removes finished jobs whose retention is over.

Settling calls remove such jobs too. The sweeper is for queues in which no job ends any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from eventbus.engine.consumer import Consumer
from eventbus.errors import StoreError
from eventbus.model import chance
from eventbus.runtime.upkeep import mark
from eventbus.store.bounds import CALL_QUEUES, HEAVY_ROWS
from eventbus.store.scripting.script_rows import SweepQueue
from eventbus.store.store import Store
from eventbus.telemetry.listeners import Teller
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.worker")


class Sweeper:
    """Removes expired finished jobs of the queues that this worker serves."""

    def __init__(
        self,
        store: Store,
        consumers: Mapping[str, Consumer],
        *,
        interval: float = 60.0,
        teller: Teller | None = None,
    ) -> None:
        """`interval` is in seconds; each sweep comes up to half of it earlier, by chance."""
        self._store = store
        self._consumers = consumers
        self._interval = interval
        self._teller = teller or Teller()

    async def run_once(self, *, now_ms: int | None = None) -> int:
        """Sweep each queue once; return how many jobs were removed: of each queue a bounded number."""
        removed = 0
        consumers = list(self._consumers.values())
        for first in range(0, len(consumers), CALL_QUEUES):
            rows = [
                SweepQueue(
                    served.queue, kept.keep_completed, kept.age_completed, kept.keep_failed, kept.age_failed
                )
                for served in consumers[first : first + CALL_QUEUES]
                for kept in (served.retention,)
            ]
            removed += await self._store.sweep(rows, limit=HEAVY_ROWS, now="" if now_ms is None else now_ms)
        return removed

    async def _sweep_all(self) -> None:
        while await self.run_once() >= HEAVY_ROWS:  # noqa: ASYNC110  (other clients go between calls)
            await asyncio.sleep(0.1)

    async def run(self) -> None:
        """Sweep until cancelled; the worker runs this as one of its tasks."""
        mark("always")
        while True:
            await asyncio.sleep(self._interval * (1 - 0.5 * chance.jitter()))
            try:
                await self._sweep_all()
            except StoreError as error:
                _log.error("sweep refused", error=str(error))
                self._teller.error("sweeper", error)
