"""The time: the only place where the package asks for it.

Not here: durations (`durations.py`), waiting, and the server's time.
Always holds: stored times come from `now`, measured lengths from `monotonic`; the two are
never mixed, because the wall clock may jump.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from eventbus.errors import DefinitionError
from eventbus.names import shown

__all__ = ["Clock", "SystemClock", "to_unix_ms"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """What tells the time. Tests pass one that they move by hand."""

    def now(self) -> float:
        """Return the wall clock in Unix seconds; for times that are stored or shown."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, never going back; for lengths of time."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Return the wall clock in Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return the seconds since some moment before this process began."""
        return time.monotonic()


def to_unix_ms(when: datetime) -> int:
    """Return the point in time `when` in whole Unix milliseconds, rounded down.

    Raises DefinitionError for a datetime without a timezone: which instant it means
    would depend on the machine that reads it.
    """
    if not isinstance(when, datetime) or when.utcoffset() is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(
            f"expected a datetime with a timezone, got: {shown(when)}; add one, such as tzinfo=datetime.UTC"
        )
    return (when - _EPOCH) // timedelta(milliseconds=1)
