"""Removes finished jobs whose retention is over, also of queues where nothing ends any more."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from eventbus.engine.consumer import Consumer
from eventbus.errors import StoreError
from eventbus.logs import get_logger
from eventbus.store.rows import SweepQueue
from eventbus.store.store import Store

__all__ = ["Sweeper"]

_log = get_logger("eventbus.worker")

_LIMIT = 100
_CHUNK = 50


class Sweeper:
    """Sweeps the queues that this worker serves."""

    def __init__(self, store: Store, consumers: Mapping[str, Consumer], *, interval: float = 60.0) -> None:
        """`interval` in seconds; each look comes up to a half earlier, by chance."""
        self._store = store
        self._consumers = consumers
        self._interval = interval

    async def run_once(self, *, now_ms: int | None = None) -> int:
        """Sweep each queue once, a bounded number of jobs; returns how many were removed."""
        removed = 0
        consumers = list(self._consumers.values())
        for first in range(0, len(consumers), _CHUNK):
            rows = [
                SweepQueue(
                    each.queue, kept.keep_completed, kept.age_completed, kept.keep_failed, kept.age_failed
                )
                for each in consumers[first : first + _CHUNK]
                for kept in (each.retention,)
            ]
            removed += await self._store.sweep(rows, limit=_LIMIT, now="" if now_ms is None else now_ms)
        return removed

    async def _sweep_all(self) -> None:
        while await self.run_once() >= _LIMIT:  # noqa: ASYNC110  (a pace that leaves the server to others)
            await asyncio.sleep(0.1)

    async def run(self) -> None:
        """Sweep for ever; the worker owns this and ends it."""
        while True:
            await asyncio.sleep(self._interval * (1 - 0.5 * random.random()))
            try:
                await self._sweep_all()
            except StoreError as error:
                _log.error("sweep refused", error=str(error))
