"""Schedules in the store: they are made, changed, looked at and fired. `Store.schedules` is one of these.

Not here: when a schedule fires, and what its plan says; a plan is a text. What must always hold: a call that
may have been carried out may be repeated (`schedule.lua`, `fire.lua`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

from eventbus.store.bounds import CALL_BYTES, HEAVY_ROWS
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.scripting.script_rows import DueRow, FireRow, ScheduleRow

Word: TypeAlias = Literal["put", "remove", "pause", "resume"]
"""What may be done with one schedule."""


class FireAnswer(NamedTuple):
    """The answer to one call that fires. `first` is when the first schedule is due, ms, or -1."""

    now: int
    first: int
    words: list[str]
    """What became of each row; see `fire.lua`."""
    due: list[DueRow]
    """Schedules that are due now."""


class SchedulePage(NamedTuple):
    """A part of the schedules; `total` is how many there are in all, `now` the server's time in ms."""

    now: int
    total: int
    rows: list[ScheduleRow]


class ScheduleStore:
    """The schedules of one shard."""

    def __init__(self, caller: RetryingCaller) -> None:
        self._caller = caller

    async def fire(
        self,
        rows: Sequence[FireRow],
        *,
        key_ttl_ms: int,
        most: int = HEAVY_ROWS,
        deadline: float | None = None,
        now: int | str = "",
    ) -> FireAnswer:
        """Fire schedules, and return those that are due then, at most `most` and 1 MiB of plans."""
        arguments: list[Any] = [now, key_ttl_ms, most, CALL_BYTES, len(rows), *chain.from_iterable(rows)]
        answer = await self._caller.script("fire", arguments, deadline=deadline)
        flat = answer[3]
        width = len(DueRow._fields)
        due = [DueRow(*flat[i : i + width]) for i in range(0, len(flat), width)]
        return FireAnswer(int(answer[0]), int(answer[1]), answer[2], due)

    async def change(
        self,
        word: Word,
        schedule: str,
        *,
        seen: str,
        seen_slot: str = "",
        slot: int | str = "",
        due: int | str = "",
        plan: str = "",
        digest: str = "",
        owner: str = "",
        version: int = 0,
        limit: int = 0,
        reason: str = "",
        queue: str = "",
        deadline: float | None = None,
        now: int | str = "",
    ) -> tuple[str, str]:
        """Make, change, remove, pause or resume a schedule, whose `gen` was `seen`. Return what became of it,
        and its gen.

        `seen_slot` is the slot that stood there. `owner` and `version` are those of a program that declares;
        without an owner both stay. It became `new`, `changed`, `same`, `removed`, `paused`, `resumed`,
        `stale` (it is another one by now), `older` or `unknown`.
        """
        arguments = [
            now, word, schedule, seen, seen_slot, slot, due, plan, digest, owner, version, limit, reason,
            queue,
        ]  # fmt: skip
        answer = await self._caller.script("schedule", arguments, deadline=deadline)
        return answer[0], answer[1]

    async def look(
        self,
        schedule: str = "",
        *,
        first: int = 0,
        limit: int = HEAVY_ROWS,
        deadline: float | None = None,
        now: int | str = "",
    ) -> SchedulePage:
        """Return one schedule, or without a name a page of all, from the rank `first` on."""
        arguments = [now, schedule, first, limit, CALL_BYTES]
        answer = await self._caller.look_by("schedules", arguments, deadline=deadline)
        flat = answer[2]
        width = len(ScheduleRow._fields)
        rows = [ScheduleRow(*flat[i : i + width]) for i in range(0, len(flat), width)]
        return SchedulePage(int(answer[0]), answer[1], rows)
