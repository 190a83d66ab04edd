"""The audit in the store: a stream of who did what, and one of who was refused; each has the newest of 90
days.

They are apart, so that refusals, which anybody can cause, push no action out. Older releases wrote refusals
among the actions; these are read as they stand.

`ControlStore.audit` is one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys


class AuditRow(NamedTuple):
    """One entry: its id in the stream, which begins with the server's time in ms, and its fields."""

    id: str
    fields: dict[str, str]

    @property
    def at_ms(self) -> int:
        """When it was written."""
        return int(self.id.partition("-")[0])


class AuditStore:
    """The audit of one shard."""

    def __init__(self, caller: RetryingCaller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def append(
        self,
        fields: Mapping[str, str],
        *,
        replaced: str = "",
        deadline: float | None = None,
        now: int | str = "",
    ) -> str:
        """Append an entry, in the place of the one with the id `replaced`. Return its id; `''` if that was
        replaced before.
        """
        flat = list(chain.from_iterable(fields.items()))
        return await self._caller.script("audit", [now, replaced, flat], deadline=deadline)

    async def read(self, most: int, *, before: str = "", deadline: float | None = None) -> list[AuditRow]:
        """Return the newest entries, or those before the entry with the id `before`; newest first."""
        last, found = f"({before}" if before else "+", list[AuditRow]()
        for kind in ("audit", "refusals"):
            name = self._keys.shard_key(kind)
            rows = await self._caller.look(
                "XREVRANGE", name, last, "-", "COUNT", most, missing=[], deadline=deadline
            )
            found += [AuditRow(id_, dict(zip(flat[::2], flat[1::2], strict=True))) for id_, flat in rows]
        return sorted(found, key=_place, reverse=True)[:most]


def _place(row: AuditRow) -> tuple[int, int]:
    ms, _, number = row.id.partition("-")
    return int(ms), int(number)
