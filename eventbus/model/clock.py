"""The clock: the only module of the packages that reads the time.

Not here: durations (`durations.py`), waiting, and the server's time, which the scripts read themselves.

What must always hold:
- times that are stored or shown come from `now`, lengths of time and deadlines from `monotonic`; the two are
  never mixed, because the wall clock may jump;
- callers write `clock.now()` and never import the function itself, so that a test moves the time by one
  replacement.

Timers of an event loop count by `loop.time()`. Only code that sets such timers reads that.
Weighed: to pass a clock to every object. A process has one time, and most of the code that reads it is many
calls below the code that could choose a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from eventbus.errors import DefinitionError
from eventbus.model.names import shown

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

now: Callable[[], float] = time.time
"""Return the wall clock's time in Unix seconds, for times that are stored or shown."""

monotonic: Callable[[], float] = time.monotonic
"""Return the seconds since an arbitrary start. They never go back; for lengths of time and deadlines."""


def to_unix_ms(when: datetime) -> int:
    """Return the point in time `when` in whole Unix milliseconds, rounded down.

    Raises DefinitionError for a datetime without a timezone, because its meaning would depend on
    the machine that reads it.
    """
    if (
        not isinstance(when, datetime)  # pyright: ignore[reportUnnecessaryIsInstance]
        or when.utcoffset() is None
    ):
        raise DefinitionError(
            f"expected a datetime with a timezone, got: {shown(when)}; add one, such as tzinfo=datetime.UTC"
        )
    return (when - _EPOCH) // timedelta(milliseconds=1)
