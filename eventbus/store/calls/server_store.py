"""The server itself: what it says of itself, and of which kinds its keys are. It writes nothing."""

from __future__ import annotations

from collections import Counter

from eventbus.errors import StoreRefused
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import KINDS, Keys
from eventbus.store.server_info import parse_info

_SCANS, _COUNT = 10, 1000
"""So many calls look at so many keys each, about: to count is no work that a server should notice."""


class ServerStore:
    """The server of one shard."""

    def __init__(self, caller: RetryingCaller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def facts(self, *, deadline: float | None = None) -> dict[str, str]:
        """Return what the server says of itself."""
        return parse_info(await self._caller.command("INFO", deadline=deadline))

    async def kinds(self, *, deadline: float | None = None) -> tuple[dict[str, int], bool]:
        """Return how many keys of each kind are among the first 10,000, and whether these are all.

        None are found, and these are not all, for a user who may not scan.
        """
        start = self._keys.of("", "")[:-1]
        found: Counter[str] = Counter()
        cursor = "0"
        for _ in range(_SCANS):
            try:
                cursor, names = await self._caller.command("SCAN", cursor, "COUNT", _COUNT, deadline=deadline)
            except StoreRefused as error:
                if error.code == "NOPERM":
                    return {}, False
                raise
            own = (name[len(start) :].partition(":")[0] for name in names if name.startswith(start))
            found.update(kind for kind in own if kind in KINDS)
            if cursor == "0":
                return dict(sorted(found.items())), True
        return dict(sorted(found.items())), False
