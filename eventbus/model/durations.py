"""Durations: lengths of time as users write them, converted to seconds.

Not here: points in time (`clock.py`), and the meaning of a setting. Each setting decides whether 0 or
`None` means "none".
What must always hold: a converted duration is finite, at least 0 and at most 100 years, so that it fits
every later integer and float, in the server too.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from eventbus.errors import DefinitionError
from eventbus.model.names import shown

Duration: TypeAlias = float | int | timedelta | str
"""Seconds as a number, a timedelta, or text such as `"250ms"`, `"1.5 s"`, `"1h30m"`, `"2 weeks"`."""

LONGEST = 100 * 365 * 86_400.0
"""The longest duration that is accepted, in seconds: 100 years."""

_UNITS = {
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604_800.0),
}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")
_PLAIN = re.compile(_NUMBER)


def seconds(value: Duration, *, setting: str) -> float:
    """Return `value` in seconds, such as 5400.0 for `"1h30m"`.

    Text is one or more numbers with units (ms, s, m, h, d, w or their English words), each
    unit at most once. A number without a unit means seconds. Raises DefinitionError, which names
    `setting` and the value, for a bool, NaN, infinity, a negative value, more than 100
    years, empty text, an unknown unit and every other type.
    """
    result = _as_seconds(value)
    if result is None or math.isnan(result):
        raise DefinitionError(
            f'expected {setting} to be seconds, a timedelta or text such as "250ms", "5 minutes" '
            f'or "1h30m", got: {shown(value)}'
        )
    if result < 0 or result > LONGEST:
        raise DefinitionError(f"expected {setting} to be from 0 s to 100 years, got: {shown(value)}")
    return result


def milliseconds(value: Duration, *, setting: str) -> int:
    """Return `value` in whole milliseconds, as the store keeps durations.

    Rounds, but a duration above 0 is at least 1 ms, because 0 often means "none". Raises as `seconds` does.
    """
    exact = seconds(value, setting=setting) * 1000
    return max(1, round(exact)) if exact else 0


_SHOWN = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def text_of_ms(ms: int) -> str:
    """Return whole milliseconds as text that `seconds` reads, in the largest unit that is whole: 90000 is
    `"90s"`.

    Days are the largest one, because people say 30 days, and not four weeks and two days.
    """
    unit, length = next(pair for pair in _SHOWN if ms % pair[1] == 0)
    return f"{ms // length}{unit}" if ms else "0s"


def _as_seconds(value: object) -> float | None:
    """Return the number of seconds, of any size and sign, or None if `value` is not a duration."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _read_text(value.strip().lower())
    return None


def _read_text(text: str) -> float | None:
    if text.startswith("-"):
        positive = _read_text(text[1:].lstrip()) if text[1:2] != "-" else None
        return None if positive is None else -positive
    if _PLAIN.fullmatch(text):
        return float(text)
    total, place, used = 0.0, 0, set[float]()
    while place < len(text):
        part = _PART.match(text, place)
        unit = _UNITS.get(part[2]) if part else None
        if part is None or unit is None or unit in used:
            return None
        used.add(unit)
        total += float(part[1]) * unit
        place = part.end()
    return total if used else None
