"""A timetable: the slots of a schedule, and when each is due.

A slot is a point in time in Unix ms, and names the firing. It follows from the timetable alone, so it is the
same in each worker, however late it fires and whatever the clock of a machine says. Jitter delays a slot, and
does not change it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.names import shown
from eventbus.schedules.cron import Cron
from eventbus.schedules.zone import find_zone

COUNTED = 1000
"""Slots that are counted one by one; where more lie between two points in time, the count is this one."""

_SHORTEST = 100
"""The shortest interval, ms."""


class Timetable(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a schedule fires: by `cron` in the zone `tz`, or each `every` ms from `anchor` on. Times are Unix
    ms.
    """

    cron: str = ""
    every: int = 0
    tz: str = "UTC"
    anchor: int = 0
    start: int | None = None
    """No slot is before it."""
    end: int | None = None
    """No slot is after it."""
    jitter: int = 0
    """A slot is due up to this many ms after it."""

    def check(self) -> None:
        """Raise DefinitionError if it has no slots, or cannot be read."""
        if bool(self.cron) == bool(self.every):
            raise DefinitionError(
                "expected either cron or every, got " + ("both" if self.cron else "neither")
            )
        if self.every and self.every < _SHORTEST:
            raise DefinitionError(f"expected every to be at least {_SHORTEST} ms, got: {self.every} ms")
        if self.cron:
            _read_cron(self.cron, self.tz)
        find_zone(self.tz)
        if self.end is not None and self.start is not None and self.end < self.start:
            raise DefinitionError(
                f"expected end not to be before start, got: {shown(self.end)} < {shown(self.start)}"
            )

    def next_after(self, ms: int) -> int | None:
        """Return the first slot after a point in time, or None if there is none."""
        if self.start is not None:
            ms = max(ms, self.start - 1)
        if self.every:
            slot = max(self.anchor, ms + 1 + (self.anchor - ms - 1) % self.every)
        else:
            found = _read_cron(self.cron, self.tz).next_after(ms)
            if found is None:
                return None
            slot = found
        return None if self.end is not None and slot > self.end else slot

    def due(self, slot: int, schedule: str) -> int:
        """Return when a slot of a schedule is due: with the jitter, which is the same in each worker."""
        if not self.jitter:
            return slot
        digest = hashlib.blake2b(f"{schedule}:{slot}".encode(), digest_size=8).digest()
        return slot + int.from_bytes(digest) % (self.jitter + 1)

    def latest(self, slot: int, until: int) -> tuple[int, int]:
        """Return the latest slot from `slot` to `until`, and how many lie from `slot` to before it.

        The count is exact up to `COUNTED`.
        """
        if self.every:
            last = until if self.end is None else min(until, self.end)
            steps = max(0, last - slot) // self.every
            return slot + steps * self.every, min(steps, COUNTED)
        last, count = slot, 0
        while count < COUNTED:
            following = self.next_after(last)
            if following is None or following > until:
                return last, count
            last, count = following, count + 1
        return self._search_back(last, until), count

    def _search_back(self, known: int, until: int) -> int:
        span = 60_000
        while until - span > known:
            found = self.next_after(until - span)
            if found is not None and found <= until:
                known = found
                break
            span *= 2
        while (following := self.next_after(known)) is not None and following <= until:
            known = following
        return known


@lru_cache(maxsize=4096)
def _read_cron(text: str, zone: str) -> Cron:
    return Cron(text, find_zone(zone))
