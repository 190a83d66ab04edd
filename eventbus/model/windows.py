"""For how long the history of queues is kept, and the setting that says it."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.durations import seconds
from eventbus.model.names import shown

LONGEST_MINUTES = 7 * 86_400.0
LONGEST_HOURS = 366 * 86_400.0
"""Seconds. Whoever removes a queue forgets so much of it, whatever the setting was (`cells.lua`)."""

_SHORTEST = 3600.0


class Windows(msgspec.Struct, frozen=True):
    """How long the history of queues is kept by minute, and how long by hour, both in seconds."""

    minutes: float = 172_800.0
    hours: float = 7_776_000.0

    def __str__(self) -> str:
        return f"{self.minutes / 3600:g}h,{self.hours / 86_400:g}d"


def read_windows(name: str, value: object) -> Windows | None:
    """Return the windows that a setting names, such as "48h,90d"; None for None and "none".

    Raises DefinitionError for anything else, also for a window by minute that is not from 1 hour to 7 days,
    and for one by hour that is shorter than it or longer than 366 days.
    """
    if value is None or isinstance(value, Windows):
        return value
    if isinstance(value, str) and value.strip().lower() == "none":
        return None
    texts = value.split(",") if isinstance(value, str) else cast("Any", value)
    if not isinstance(texts, (list, tuple)) or len(cast("list[Any]", texts)) != 2:
        raise DefinitionError(
            f'expected {name} to be how long it is kept by minute and by hour, such as "48h,90d", or "none", '
            f"got: {shown(value)}"
        )
    minutes, hours = (seconds(each, setting=name) for each in cast("list[Any]", texts))
    if not _SHORTEST <= minutes <= LONGEST_MINUTES:
        raise DefinitionError(f"expected {name} to keep minutes for 1 hour to 7 days, got: {shown(value)}")
    if not minutes <= hours <= LONGEST_HOURS:
        raise DefinitionError(
            f"expected {name} to keep hours at least as long as minutes and at most 366 days, "
            f"got: {shown(value)}"
        )
    return Windows(minutes, hours)
