"""Presence: which workers serve which queues. Here a worker leaves its queues and then the server, and queues
are looked at.

Not here: a worker announces itself by `Store.announce`, every 5 s. A killed worker counts as live for
20 s after its last announcement (`presence.lua`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventbus.store.bounds import CALL_ROWS
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys
from eventbus.store.readable import number
from eventbus.store.scripting.script_rows import QueueLook

_DEFINED_MS = 90 * 86_400_000
_WIDTH = len(QueueLook._fields)


class PresenceStore:
    """The workers that serve the queues of one shard."""

    def __init__(self, caller: RetryingCaller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def leave(
        self,
        worker: str,
        pool: str,
        queues: Sequence[str],
        *,
        jobs: Sequence[str] = (),
        deadline: float | None = None,
        now: int | str = "",
    ) -> int:
        """Record that a worker of `pool` no longer serves `queues`. Return how many live workers are left.

        `jobs` are those that it knows of; others that were handed over to it are given back.
        """
        arguments: list[Any] = [now, worker, pool, len(queues), len(jobs), *queues, *jobs]
        return await self._caller.script("leave", arguments, deadline=deadline)

    async def deregister(self, worker: str, *, deadline: float | None = None) -> int:
        """Record that a worker has stopped for good. Return how many jobs it still holds; these will be
        rescued.
        """
        return await self._caller.script("deregister", [worker], deadline=deadline)

    async def survey(
        self, queues: Sequence[str], *, asker: str = "", deadline: float | None = None, now: int | str = ""
    ) -> list[QueueLook]:
        """Look at `queues`, and return one row for each, in order. The worker `asker` is not counted."""
        looks: list[QueueLook] = []
        for first in range(0, len(queues), CALL_ROWS):
            batch = queues[first : first + CALL_ROWS]
            flat = await self._caller.look_by("survey", [now, asker, len(batch), *batch], deadline=deadline)
            for i in range(0, len(flat), _WIDTH):
                workers, announced, waiting, parked, delayed, oldest = flat[i : i + _WIDTH]
                looks.append(QueueLook(workers, number(announced), waiting, parked, delayed, number(oldest)))
        return looks

    async def define(self, queue: str, version: str, text: str, *, deadline: float | None = None) -> None:
        """Keep for 90 days what a version of the jobs of a queue is. Without a script: every worker of it
        says the same.
        """
        key = self._keys.definition(queue, version)
        await self._caller.command("SET", key, text, "PX", str(_DEFINED_MS), deadline=deadline)

    async def definition(self, queue: str, version: str, *, deadline: float | None = None) -> str:
        """Return what a version of the jobs of a queue is; `''` if no worker has told it within 90 days."""
        name = self._keys.definition(queue, version)
        return await self._caller.look("GET", name, missing="", deadline=deadline) or ""

    async def take_reading(self, worker: str, *, hold_ms: int, deadline: float | None = None) -> bool:
        """Ask for the right to read the lengths of all queues, for the metrics of the fleet. Return whether
        `worker` has it.

        It has it for `hold_ms` from now on. Without a script, because two that have it for a moment do no
        harm.
        """
        key = self._keys.shard_key("gauges")
        if await self._caller.command("SET", key, worker, "NX", "PX", str(hold_ms), deadline=deadline):
            return True
        if await self._caller.command("GET", key, deadline=deadline) != worker:
            return False
        await self._caller.command("PEXPIRE", key, str(hold_ms), deadline=deadline)
        return True
