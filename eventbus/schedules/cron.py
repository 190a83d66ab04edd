"""Cron expressions: the next slot of one after a point in time, in a time zone.

Five fields, six with seconds in front, or a name such as `@daily`. `cronsim` reads the expression and steps
in wall time without a zone; this module adds the zone. It follows Debian's rules for the days on which the
clock is changed:

- an expression with fixed times (neither minute nor hour begins with `*`): a time that the clock skips
  has its slot at the first minute behind the gap; of a time that comes twice only the first is a slot;
- any other expression goes by real time: each minute whose wall time fits is a slot, also the second time.

With seconds, the five other fields choose minutes by these rules, and each second that fits is a slot in
them.

What must always hold:
- the next slot depends on the point in time alone, not on where a search began: it is the same in
  every worker;
- slots rise, whatever the clock does: they are compared in Unix ms, because `fold` does not count
  in comparisons;
- no search is without an end. `cronsim` with a zone of its own may step over a gap of 30 minutes for
  ever (Lord Howe), and it knows Debian's rules for five fields only; so it never gets a zone here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from eventbus.errors import DefinitionError
from eventbus.model.names import shown
from eventbus.schedules.zone import EPOCH, offset_at, to_local, to_ms

_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_RANGES = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, or L for the last one, and a day that its month has",
    "month": "1 to 12, or jan to dec",
    "day-of-week": "0 to 7, or sun to sat",
}
_MINUTE = 60_000
_FIRST_DAY = datetime(2000, 1, 1)  # noqa: DTZ001  (wall time without a zone)
_LONGEST = 200
"""Characters of an expression."""


class Cron:
    """One cron expression in one time zone."""

    def __init__(self, text: str, zone: ZoneInfo) -> None:
        """Raises DefinitionError for an expression that cannot be read, or that has no slot within 50
        years.
        """
        self.text: str = text
        self.zone: ZoneInfo = zone
        fields = _split(text)
        self._seconds = _read_seconds(text, fields[0]) if len(fields) == 6 else [0]
        self._minutes = " ".join(fields[-5:])
        minute, hour = fields[-5:-3]
        self._is_fixed = not (minute.startswith("*") or hour.startswith("*"))
        try:
            first = next(CronSim(self._minutes, _FIRST_DAY), None)
        except (CronSimError, ValueError, OverflowError) as error:
            raise _misread(text, str(error).removeprefix("Bad ")) from None
        if first is None:
            raise DefinitionError(
                "expected cron to be an expression that fires, got one without a time in 50 years: "
                f"{shown(text)}"
            )

    @property
    def shortest(self) -> int:
        """No two slots are closer together than this many ms."""
        return 1000 if len(self._seconds) > 1 else _MINUTE

    def next_after(self, ms: int) -> int | None:
        """Return the first slot after a point in time; both in Unix ms. None if there is none within 50
        years.
        """
        if self._seconds == [0]:
            return self._next_minute(ms)
        minute = ms - ms % _MINUTE
        if self._next_minute(minute - 1) != minute:
            return self._first_second(ms)
        for second in self._seconds:
            if minute + second * 1000 > ms:
                return minute + second * 1000
        return self._first_second(ms)

    def _first_second(self, ms: int) -> int | None:
        minute = self._next_minute(ms)
        return None if minute is None else minute + self._seconds[0] * 1000

    def _next_minute(self, ms: int) -> int | None:
        return self._next_fixed(ms) if self._is_fixed else self._next_real(ms)

    def _next_fixed(self, ms: int) -> int | None:
        local = to_local(ms, self.zone).replace(tzinfo=None)
        for wall in self._walk(local):
            slot = to_ms(_behind_gap(wall, self.zone))
            if slot > ms:  # not where the clock was set back since, or where two times of a gap have one slot
                return slot
        return None

    def _next_real(self, ms: int) -> int | None:
        # As long as the offset stays, wall time and real time go together. Behind a change the search begins
        # anew.
        offset = offset_at(ms, self.zone)
        while True:
            local = EPOCH.replace(tzinfo=None) + timedelta(milliseconds=ms) + offset
            wall = next(self._walk(local), None)
            slot = None if wall is None else to_ms((wall - offset).replace(tzinfo=UTC))
            until = ms + 50 * 366 * 86_400_000 if slot is None else slot
            change = self._find_change(ms, until, offset)
            if change is None:
                return slot
            ms, offset = change - 1, offset_at(change, self.zone)

    def _find_change(self, ms: int, until: int, offset: timedelta) -> int | None:
        """Return the first point in time in (ms, until] whose offset is another one, if there is one."""
        ms, step = ms + 1, 7 * 86_400_000
        if ms <= until and offset_at(ms, self.zone) != offset:
            return ms
        while ms < until:  # a week has no two changes that undo each other
            end = min(ms + step, until)
            if offset_at(end, self.zone) != offset:
                while end - ms > 1:
                    middle = (ms + end) // 2
                    ms, end = (middle, end) if offset_at(middle, self.zone) == offset else (ms, middle)
                return end
            ms = end
        return None

    def _walk(self, local: datetime) -> Iterator[datetime]:
        try:
            yield from CronSim(self._minutes, local)
        except OverflowError:  # past the year 9999
            return


def _split(text: str) -> list[str]:
    if not isinstance(text, str) or len(text) > _LONGEST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _unreadable(text, f"text of at most {_LONGEST} characters is expected")
    name = text.strip().lower()
    if name.startswith("@") and name not in _NAMES:
        raise _unreadable(text, f"the names are {', '.join(_NAMES)}")
    fields = _NAMES.get(name, text).split()
    if len(fields) not in (5, 6):
        raise _unreadable(text, f"{len(fields)} field{'s' * (len(fields) != 1)}")
    return fields


def _read_seconds(text: str, field: str) -> list[int]:
    try:
        seconds = CronSim(f"{field} * * * * *", _FIRST_DAY).seconds
    except (CronSimError, ValueError):
        raise _misread(text, "second") from None
    return sorted(seconds)


def _unreadable(text: object, reason: str) -> DefinitionError:
    return DefinitionError(
        "expected cron to have 5 fields (minute hour day-of-month month day-of-week), "
        f"6 with seconds in front, or a name such as @daily, got: {shown(text)} ({reason})"
    )


def _misread(text: str, field: str) -> DefinitionError:
    if field not in _RANGES:
        return _unreadable(text, field)
    return DefinitionError(f"expected the {field} of cron to be {_RANGES[field]}, got: {shown(text)}")


def _behind_gap(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return a wall time in its zone, the first time that it comes; behind the gap if the clock skips it."""
    found = wall.replace(tzinfo=zone, fold=0)
    while found.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall:
        wall += timedelta(minutes=1)
        found = wall.replace(tzinfo=zone, fold=0)
    return found
