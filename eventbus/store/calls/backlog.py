"""The search for queues that have waiting or delayed jobs and no live worker. It writes nothing.

There is no list of queues, so the search scans the server's keys, in bounded calls. On a server with millions
of keys the scan ends early and says so.
"""

from __future__ import annotations

from typing import NamedTuple

from eventbus.model import clock
from eventbus.store.calls.presence_store import PresenceStore
from eventbus.store.connection.channel import Channel
from eventbus.store.keys import Keys

_SCANS, _COUNT = 500, 1000
"""The scan makes at most this many calls, each over about this many keys."""
_SCAN_WITHIN = 5.0
"""Seconds after which the scan ends early."""


class Neglected(NamedTuple):
    """A queue without a live worker.

    `oldest` is in ms, 0 if no job waits.
    """

    queue: str
    waiting: int
    delayed: int
    oldest: int


class Backlog:
    """The search for the queues of one shard that nobody serves."""

    def __init__(self, channel: Channel, presence: PresenceStore, keys: Keys) -> None:
        self._channel = channel
        self._presence = presence
        self._keys = keys

    async def find(self, *, deadline: float) -> tuple[list[Neglected], bool]:
        """Return the queues that nobody serves, and whether all keys were scanned.

        Raises StoreRefused with the code NOPERM for a missing right.
        """
        found, is_whole = await self._scan(deadline)
        queues = sorted(found)
        looks = await self._presence.survey(queues, deadline=deadline)
        neglected = [
            Neglected(queue, look.waiting, look.delayed, look.oldest)
            for queue, look in zip(queues, looks, strict=True)
            if not look.workers and (look.waiting or look.delayed)
        ]
        return neglected, is_whole

    async def _scan(self, deadline: float) -> tuple[set[str], bool]:
        """Return the queues that have waiting or delayed jobs, and whether the scan covered all keys."""
        starts = tuple(
            self._keys.of(kind, "") for kind in ("ready", "ready+", "suspects", "delayed", "turns", "resting")
        )
        pattern = self._keys.of("[drst][eu][alrs][adnpt]*", "*")  # these kinds, and hardly another
        queues: set[str] = set()
        end = clock.monotonic() + _SCAN_WITHIN
        cursor = "0"
        for _ in range(_SCANS):
            command = ("SCAN", cursor, "MATCH", pattern, "COUNT", str(_COUNT))
            cursor, names = await self._channel.call(*command, deadline=deadline)
            queues.update(name[len(start) :] for name in names for start in starts if name.startswith(start))
            if cursor == "0":
                return queues, True
            if clock.monotonic() > end:
                break
        return queues, False
