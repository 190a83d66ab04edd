"""What a bus has seen: runs of functions, and emissions, which a test looks for.

Not here: who sees them (`bus`). What must always hold: they come in the order in which they happened, and
nothing that was seen changes later.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from eventbus.errors import UsageError
from eventbus.model.durations import Duration, seconds
from eventbus.model.names import shown
from eventbus.settings.keywords import EmitOptions

P = TypeVar("P")

Where: TypeAlias = Callable[[P], object] | Mapping[str, object]
"""Which payloads are meant: a function that is true for them, or the values of some of their fields."""

_SHOWN = 5
"""Near misses that a message lists."""


class Run(NamedTuple):
    """One run of a handler, or of a function of a flow, that began."""

    name: str
    """The event, such as `order.placed`, or `order.placed@billing` for a group; or the workflow and its
    step, task or transition, such as `invoice.remind`. A rollback ends in `.rollback`, and the hooks of a
    workflow are `<workflow>@completed` and `<workflow>@failed`.
    """
    attempt: int
    """The number of the attempt, from 1."""
    at: datetime
    """The virtual time at which it began."""
    flow: str = ""
    """The id of the flow; empty for the handler of an event."""


class EmissionRecord(NamedTuple, Generic[P]):
    """One emission, as the program made it."""

    payload: P
    """As it was then: a copy, if it can be copied."""
    event: str
    job_id: str
    """The id that it had at first; it joins an earlier job if that has its key."""
    key: str
    """The idempotency key, given or from the event's key function; empty if there is none."""
    delay: float
    """Seconds until it is due, counted from the emission; that of a debounce, too."""
    meta: Mapping[str, Any]
    """What handlers see as `ctx.meta`."""
    correlation_id: str
    causation_id: str
    """The id of the job that emitted it: a handler's, or that of a flow or its step; empty outside of any."""
    options: EmitOptions
    """All options of the emission, as they were given."""
    at: datetime
    """The virtual time of the emission."""


class EmittedPayloads(list[P]):
    """The payloads of the emissions of an event, in their order. `records` has all else about them."""

    def __init__(self, records: Sequence[EmissionRecord[P]]) -> None:
        super().__init__(record.payload for record in records)
        self.records: Sequence[EmissionRecord[P]] = records


def copy_of(payload: P) -> P:
    """Return a copy that nobody changes later; the payload itself if it cannot be copied."""
    try:
        return copy.deepcopy(payload)
    except Exception:  # noqa: BLE001  (whatever the copying of a user's class raises)
        return payload


def delay_of(options: EmitOptions, now: datetime) -> float:
    """Return the seconds until an emission with these options is due."""
    if options.at is not None:
        return max(0.0, (options.at - now).total_seconds())
    delay: Duration | None = options.delay if options.delay is not None else options.debounce
    return 0.0 if delay is None else seconds(delay, setting="delay")


def find_emission(records: Iterable[EmissionRecord[P]], where: Where[P] | None) -> EmissionRecord[P] | None:
    """Return the first emission whose payload is meant; None if there is none."""
    return next((record for record in records if not _differences(record.payload, where)), None)


def describe_misses(records: Sequence[EmissionRecord[Any]], where: Where[Any] | None) -> str:
    """Return the payloads that come closest, each with what is different; at most five."""
    found = [(record, _differences(record.payload, where)) for record in records]
    found.sort(key=lambda pair: len(pair[1]))
    lines = [
        f"\n  {shown(record.payload)}: {'; '.join(differences)}" for record, differences in found[:_SHOWN]
    ]
    more = len(found) - _SHOWN
    return "".join(lines) + (f"\n  and {more} more" if more > 0 else "")


def _differences(payload: Any, where: Where[Any] | None) -> list[str]:
    """Return in what a payload differs from those that are meant; nothing if it is one of them."""
    if where is None:
        return []
    given: object = where
    if not callable(where) and not isinstance(given, Mapping):
        raise UsageError(
            f"expected where to be a function of the payload, or the values of some of its fields, got: "
            f"{shown(given)}"
        )
    if callable(where):
        return [] if where(payload) else ["`where` is not true for it"]
    return [difference for name, wanted in where.items() if (difference := _differs(payload, name, wanted))]


def _differs(payload: Any, name: str, wanted: object) -> str:
    nothing = object()
    if isinstance(payload, Mapping):
        found = cast("Mapping[str, Any]", payload).get(name, nothing)
    else:
        found = getattr(payload, name, nothing)
    if found is nothing:
        return f"it has no {name}"
    return "" if found == wanted else f"{name} is {shown(found)}, not {shown(wanted)}"
