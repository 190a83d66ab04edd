"""Says which queues this worker's pool serves, so that emits wake it; takes parked jobs back."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

from eventbus.engine.consumer import Consumer
from eventbus.errors import StoreError
from eventbus.logs import get_logger
from eventbus.store.rows import AnnounceQueue
from eventbus.store.store import Store

__all__ = ["Announcer", "pool_of"]

_log = get_logger("eventbus.worker")

_INTERVAL = 5.0
"""Seconds; a pool counts as silent after 60. So often are parked jobs taken back: while two releases run
side by side, what one of them parks is for the other."""


def pool_of(queues: Mapping[str, Consumer]) -> str:
    """The pool of the workers that serve just these queues."""
    names = "\n".join(sorted(queues))
    return hashlib.sha256(names.encode()).hexdigest()[:16]


class Announcer:
    """Keeps one worker's pool known."""

    def __init__(self, store: Store, consumers: Mapping[str, Consumer]) -> None:
        self._store = store
        self._consumers = consumers

    async def run_once(self, *, unpark: bool) -> str:
        """Announce; returns the pool that was announced."""
        consumers = dict(self._consumers)
        pool = pool_of(consumers)
        rows = [AnnounceQueue(each.queue, each.base, each.group) for each in consumers.values()]
        taken = await self._store.announce(pool=pool, queues=rows, unpark=unpark)
        if taken:
            _log.info("parked jobs taken back", count=taken)
        return pool

    async def run(self) -> None:
        """Announce for ever; the worker owns this and ends it."""
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                await self.run_once(unpark=True)
            except StoreError as error:
                _log.error("announcement refused", error=str(error))
