"""`Keep`: how long finished jobs are kept, as a value."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.durations import Duration, seconds
from eventbus.model.names import shown

__all__ = ["Keep"]


class Keep(msgspec.Struct, frozen=True):
    """How long finished jobs are kept: the newest `count`, and none older than `age`.

        EventProvider(keep_completed=Keep(1000, "1 hour"), keep_failed=Keep(age="7 days"))

    None means no limit of that kind. At least one of the two must limit. `age` is kept as float
    seconds. Raises DefinitionError for values out of range.
    """

    count: int | None = None
    age: Duration | None = None

    def __post_init__(self) -> None:
        count = cast("Any", self.count)
        if count is not None and (type(count) is not int or count < 0):
            raise DefinitionError(f"expected count to be an integer of 0 or more, got: {shown(count)}")
        if self.age is not None:
            msgspec.structs.force_setattr(self, "age", seconds(self.age, setting="age"))
        if count is None and self.age is None:
            raise DefinitionError(
                "expected a count, an age or both, got: neither; keeping all fills the server"
            )
