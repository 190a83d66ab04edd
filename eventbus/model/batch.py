"""Batches: how many jobs of an event one call of its handler takes, and how long the first of them waits, as
a value.

Not here: how a worker gathers and runs them (`handlers.batches`).
What must always hold: a `Batch` that exists is valid.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.durations import Duration, seconds
from eventbus.model.names import shown

_MOST = 1000
"""Jobs. Each has a lease that is renewed, and a result that waits for the others."""
_LONGEST = 60.0
"""Seconds."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs one call of a handler takes: `@provider.on(event, batch=Batch(size=100, wait="200ms"))`.

    `size` is the most jobs of one call, 1 to 1000. `wait` is how long the first of them waits for others, at
    most a minute; by default a call takes what is there. Raises DefinitionError for any other value.
    """

    size: int
    wait: Duration = 0

    def __post_init__(self) -> None:
        size = cast("Any", self.size)
        if type(size) is not int or not 0 < size <= _MOST:
            raise DefinitionError(
                f"expected size of a Batch to be a number of jobs from 1 to {_MOST}, got: {shown(size)}"
            )
        if self.seconds > _LONGEST:
            raise DefinitionError(
                f"expected wait of a Batch to be {_LONGEST:g} s at most, "
                f"because the jobs are leased meanwhile, got: {shown(self.wait)}"
            )

    @property
    def seconds(self) -> float:
        """How long the first job waits for others, in seconds."""
        return seconds(self.wait, setting="wait of a Batch")
