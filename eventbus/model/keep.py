"""`Keep`: how long finished jobs are kept, as a value."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeAlias, cast

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.durations import Duration, seconds
from eventbus.model.names import shown


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


KeepGiven: TypeAlias = Keep | int | str | timedelta | tuple[int | None, Duration | None]
"""What stands for a `Keep`: itself, a count, an age, or both."""


def read_keep(name: str, value: object) -> Keep:
    """Return the `Keep` that `value` stands for. Raises DefinitionError, which says `name`, for anything
    else.
    """
    if isinstance(value, Keep):
        return value
    if isinstance(value, tuple):
        pair = cast("tuple[Any, ...]", value)
        if len(pair) == 2:
            return Keep(*pair)
        raise DefinitionError(f"expected {name} to be (count, age), got: {shown(pair)}")
    if isinstance(value, int) and not isinstance(value, bool):
        return Keep(count=value)
    if isinstance(value, (str, timedelta)):
        return Keep(age=value)
    raise DefinitionError(
        f'expected {name} to be a Keep, a count, an age such as "7 days", or (count, age), '
        f"got: {shown(value)}"
    )


def check_keep(option: str, value: object, where: str) -> Keep | None:
    """Return the `Keep` of a definition, None if it has none. Raises DefinitionError, which names the option
    and `where`.
    """
    if value is None:
        return None
    name = f"{option} of {where}"
    try:
        return read_keep(name, value)
    except DefinitionError as error:
        raise DefinitionError(str(error) if name in str(error) else f"{name}: {error}") from None


_Pair: TypeAlias = tuple[int | None, float | None]
"""A count, and an age in seconds."""


class _Wire(msgspec.Struct, omit_defaults=True):
    """What a definition keeps, as it is announced and shown (`orders.lua`)."""

    completed: _Pair | None = None
    failed: _Pair | None = None


def keeps_to_wire(completed: Keep | None, failed: Keep | None) -> str:
    """Return what a definition says of its finished jobs as JSON, `''` if it says nothing."""
    if completed is None and failed is None:
        return ""
    pairs = [None if keep is None else msgspec.structs.astuple(keep) for keep in (completed, failed)]
    return msgspec.json.encode(_Wire(*pairs)).decode()


def keeps_from_wire(text: str) -> tuple[Keep | None, Keep | None]:
    """Return what `keeps_to_wire` was given. Raises DefinitionError for any other text."""
    if not text:
        return None, None
    try:
        wire = msgspec.json.decode(text, type=_Wire)
    except msgspec.MsgspecError as error:
        raise DefinitionError(f"expected what is kept, got: {shown(text)}") from error
    completed, failed = (None if pair is None else Keep(*pair) for pair in (wire.completed, wire.failed))
    return completed, failed
