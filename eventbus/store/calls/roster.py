"""The roster: all queues and all workers that a server knows, and how many jobs are where. It writes nothing.

`QueryStore.roster` is one of these. What must hold: no call looks at more than a bounded number of queues,
workers or jobs, and none walks the jobs of a queue to count them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from eventbus.model.names import split_group
from eventbus.store.bounds import CALL_QUEUES
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys
from eventbus.store.readable import number

_HELD = 2000  # jobs that one call counts, and those of one worker more
_MINUTES = 5  # of the history, for what ended lately: the one that runs, and those before it
_MINUTE = 60_000
ALIVE = 20_000
"""ms for which a worker counts as live after its last announcement, as `presence.lua` has it."""


class EndedCounts(NamedTuple):
    """How many jobs of a queue ended in each way and are kept, and how many of them ended in a minute,
    lately.
    """

    completed: int
    failed: int
    cancelled: int
    completed_per_minute: float = 0.0
    failed_per_minute: float = 0.0


class WorkerRow(NamedTuple):
    """The id of one worker."""

    worker: str


class WorkerLook(NamedTuple):
    """A worker: when it announced itself last (ms), how many jobs it holds, and what it says of itself."""

    id: str
    announced: int
    held: int
    fields: dict[str, str]


class RosterStore:
    """The queues and the workers of one shard."""

    def __init__(self, caller: RetryingCaller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def now(self, *, deadline: float | None = None) -> int:
        """Return the server's time, ms."""
        seconds, micros = await self._caller.command("TIME", deadline=deadline)
        return int(seconds) * 1000 + int(micros) // 1000

    async def queues(self, *, deadline: float | None = None) -> list[str]:
        """Return the queues that somebody serves, or got jobs, or for which anything is ordered; sorted."""
        names: set[str] = set()
        served = self._keys.shard_key("served")
        names.update(await self._caller.look("ZRANGE", served, 0, -1, missing=(), deadline=deadline))
        limited = self._keys.shard_key("limited")
        names.update(await self._caller.look("SMEMBERS", limited, missing=(), deadline=deadline))
        names.update(await self.group_queues(deadline=deadline))
        return sorted(names)

    async def group_queues(self, *, deadline: float | None = None) -> list[str]:
        """Return the queues of all groups. The calls are sent together, so that many events with groups are
        no long way.
        """
        grouped = self._keys.shard_key("grouped")
        bases: list[str] = await self._caller.look("SMEMBERS", grouped, missing=[], deadline=deadline)
        groups = await asyncio.gather(
            *(
                self._caller.look("SMEMBERS", self._keys.of("groups", base), missing=[], deadline=deadline)
                for base in bases
            )
        )
        return [f"{base}@{group}" for base, found in zip(bases, groups, strict=True) for group in found]

    async def ended(
        self, queues: Sequence[str], *, deadline: float | None = None, now: int | str = ""
    ) -> list[EndedCounts]:
        """Count what has ended in these queues, in order. The rates are those of the last 4 to 5 minutes."""
        found: list[EndedCounts] = []
        for first in range(0, len(queues), CALL_QUEUES):
            batch = queues[first : first + CALL_QUEUES]
            arguments = [now, _MINUTES, len(batch), *batch]
            span, *flat = await self._caller.look_by("ended", arguments, deadline=deadline)
            for i in range(0, len(flat), 5):
                completed, failed, cancelled, *lately = flat[i : i + 5]
                rates = (round(count * _MINUTE / max(1, span), 2) for count in lately)
                found.append(EndedCounts(completed, failed, cancelled, *rates))
        return found

    async def active(self, *, deadline: float | None = None) -> Counter[str]:
        """Count the jobs that workers hold, by queue."""
        counts: Counter[str] = Counter()
        after = ""
        while True:
            after, *flat = await self._caller.look_by(
                "active", [after, _HELD], missing=[""], deadline=deadline
            )
            for i in range(0, len(flat), 2):
                counts[flat[i]] += flat[i + 1]
            if not after:
                return counts

    async def workers(self, *, deadline: float | None = None) -> list[WorkerLook]:
        """Return all workers that announced themselves within 10 minutes and have not ended, sorted by id."""
        fleet = self._keys.shard_key("fleet")
        flat: list[Any] = await self._caller.look(
            "ZRANGE", fleet, 0, -1, "WITHSCORES", missing=[], deadline=deadline
        )
        announced = dict(sorted(zip(flat[::2], flat[1::2], strict=True)))
        ids = list(announced)
        found: list[WorkerLook] = []
        for first in range(0, len(ids), CALL_QUEUES):
            batch = ids[first : first + CALL_QUEUES]
            rows = await self._caller.look_by("workers", [len(batch), *batch], deadline=deadline)
            for worker, (held, pairs) in zip(batch, rows, strict=True):
                fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
                found.append(WorkerLook(worker, number(announced[worker]), held, fields))
        return found

    async def serving(self, *, deadline: float | None = None) -> Counter[str]:
        """Count the live workers that serve a queue or one of its groups, by the queue without its group."""
        now, counts = await self.now(deadline=deadline), Counter[str]()
        for look in await self.workers(deadline=deadline):
            if now - look.announced <= ALIVE:
                counts.update({split_group(queue)[0] for queue in look.fields.get("queues", "").split()})
        return counts
