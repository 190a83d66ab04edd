"""Gives the jobs of dead workers back: looks when the earliest lease ends."""

from __future__ import annotations

import asyncio
import random

from eventbus.errors import StoreError
from eventbus.logs import get_logger
from eventbus.store.store import Store

__all__ = ["Rescuer"]

_log = get_logger("eventbus.worker")

_LIMIT = 200
_LOOK, _APART = 0.4, 0.05  # of a lease; together less than the half that counts as a gap

_VERDICTS = {
    "rescued": "job stalled, given back",
    "failed": "job stalled too often, failed",
    "cancelled": "job stalled, ended as cancelled as was asked",
}


class Rescuer:
    """Ends leases that ran out, of any worker of the shard."""

    def __init__(self, store: Store, *, lease_ms: int, max_stalls: int, key_ttl_ms: int) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._max_stalls = max_stalls
        self._key_ttl_ms = key_ttl_ms

    async def run_once(self, *, now_ms: int | None = None) -> float:
        """Rescue what has stalled; returns the seconds until the next look.

        A lease that begins after this look ends at least one lease later, so one look in a lease
        would see every end in time. There are more, so that the looks alone show that the server was
        there all along: else a worker that is alone, and does not renew, would see a gap each time
        and put its rescue off for ever (see `heard.lua`).
        """
        lease = self._lease_ms / 1000
        next_ms, stalls = await self._store.rescue(
            lease_ms=self._lease_ms,
            limit=_LIMIT,
            max_stalls=self._max_stalls,
            key_ttl_ms=self._key_ttl_ms,
            now="" if now_ms is None else now_ms,
        )
        for each in stalls:
            _log.warning(
                _VERDICTS[each.verdict],
                job_id=each.id,
                holder=each.worker,
                renewed_ago=each.age / 1000,
                loop_lag=each.lag / 1000,
            )
        if len(stalls) >= _LIMIT:
            return 0.0
        longest = _LOOK * lease
        return longest if next_ms < 0 else min(longest, next_ms / 1000)

    async def run(self) -> None:
        """Look for ever; the worker owns this and ends it."""
        while True:
            try:
                pause = await self.run_once()
            except StoreError as error:
                _log.error("rescue refused", error=str(error))
                pause = self._lease_ms / 1000
            # A little apart, so that a fleet does not look in one instant.
            await asyncio.sleep(pause + min(0.5, _APART * self._lease_ms / 1000) * random.random())
