"""Groups of queues in the store: they are listed, added and removed."""

from __future__ import annotations

from typing import Any

from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys
from eventbus.store.scripting.script_rows import GroupRemoval


class GroupStore:
    """The groups of one shard's queues."""

    def __init__(self, caller: RetryingCaller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def add(self, queue: str, group: str, *, deadline: float | None = None) -> None:
        """Add a group before its first worker starts, so that it gets every emission from now on."""
        await self._caller.script("group", [queue, group], deadline=deadline)

    async def grouped(self, *, deadline: float | None = None) -> list[str]:
        """Return the queues that have groups."""
        name = self._keys.shard_key("grouped")
        return await self._caller.look("SMEMBERS", name, missing=[], deadline=deadline)

    async def of(self, queue: str, *, deadline: float | None = None) -> list[str]:
        """Return the groups of a queue, without the default group."""
        name = self._keys.of("groups", queue)
        return await self._caller.look("SMEMBERS", name, missing=[], deadline=deadline)

    async def remove(
        self,
        queue: str,
        group: str,
        *,
        force: bool,
        limit: int,
        age_completed: int,
        age_failed: int,
        key_ttl_ms: int,
        call: str,
        text: str,
        deadline: float | None = None,
        now: int | str = "",
    ) -> GroupRemoval:
        """Remove a part of a group, because one call is bounded.

        Ages are in ms. `call` is fresh for each removal. `text` is the outcome that the waiters of the
        group's jobs get. `force` removes the group although live workers serve it.
        """
        arguments: list[Any] = [
            *(now, queue, group, int(force), limit),
            *(age_completed, age_failed, key_ttl_ms, call, text),
        ]
        return GroupRemoval(*await self._caller.script("ungroup", arguments, deadline=deadline))
