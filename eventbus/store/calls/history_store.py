"""The history of queues in the store: workers add to it, and anybody reads it.

`Store.history` is one of these. Not here: what the codes of counts mean for people (`admin.history`), and how
a cell is written (`store/lua/lib/cells.lua`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

from eventbus.store.connection.retrying import RetryingCaller

COMPLETED, FAILED, RETRIED, CANCELLED, STALLED, EXPIRED = 1, 2, 3, 4, 5, 6
WAITING, OLDEST = 7, 8
WAITS, RUNS = 16, 64
"""The codes of a cell (`cells.lua`): how many jobs ended how; the gauges; the first bucket of each
histogram.
"""

Span: TypeAlias = Literal["minutes", "hours"]

_CHUNKS = 4
"""Chunks of one call, so that it holds nobody up: of minutes 4 hours, of hours 4 days."""


class TallyRow(NamedTuple):
    """What a worker tells of one queue: its gauges, `''` if it did not look, and how many `CountRow` belong
    to it.
    """

    queue: str
    waiting: int | str
    oldest: int | str
    counts: int


class CountRow(NamedTuple):
    """So many more of one code."""

    code: int
    more: int


class QueueTally(NamedTuple):
    """What a worker counted of one queue, by code. `waiting`, and `oldest` in ms, are `''` if it did not
    look.
    """

    queue: str
    waiting: int | str
    oldest: int | str
    counts: Mapping[int, int]


class HistoryStore:
    """The history of one shard's queues."""

    def __init__(self, caller: RetryingCaller) -> None:
        self._caller = caller

    async def tally(
        self,
        worker: str,
        number: int,
        tallies: Sequence[QueueTally],
        *,
        minutes_ms: int,
        hours_ms: int,
        deadline: float | None = None,
        now: int | str = "",
    ) -> str:
        """Add what a worker counted. `number` must rise from call to call of the worker; the same call again
        adds nothing.

        Return `added`, or `known` for a number that came before. The two times say how long minutes and hours
        are kept.
        """
        arguments: list[Any] = [now, worker, number, minutes_ms, hours_ms, len(tallies)]
        for queue, waiting, oldest, counts in tallies:
            arguments += TallyRow(queue, waiting, oldest, len(counts))
        for each in tallies:
            arguments += chain.from_iterable(each.counts.items())
        return await self._caller.script("tally", arguments, deadline=deadline)

    async def look(
        self, queue: str, span: Span, count: int, *, deadline: float | None = None, now: int | str = ""
    ) -> tuple[int, dict[int, dict[int, int]]]:
        """Return the server's time in ms, and the newest cells of a queue: for so many minutes or hours, at
        least.

        A cell stands under the number of its minute or hour since the Unix epoch, and has its counts by code.
        One in which nothing was counted is not there.
        """
        width = 60 if span == "minutes" else 24
        left = -(-count // width) + 1  # the last chunk is not whole
        last: int | str = ""
        at, cells = 0, dict[int, dict[int, int]]()
        while left > 0:
            most = min(left, _CHUNKS)
            flat = await self._caller.script("history", [now, queue, span, last, most], deadline=deadline)
            at, last = at or flat[0], flat[1] - most
            _read_cells(flat, cells)
            left -= most
        return at, cells


def _read_cells(flat: Sequence[int], cells: dict[int, dict[int, int]]) -> None:
    place = 2
    while place < len(flat):
        number, length = flat[place], flat[place + 1]
        place += 2
        values = iter(flat[place : place + length])
        cells.setdefault(number, {}).update(zip(values, values, strict=True))
        place += length
