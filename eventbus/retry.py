"""When a failed job runs again: the rule, as a value.

Not here: what counts as a failure, stalls, and which rule wins (emission over handler over
event over provider); the worker resolves these.
Always holds: a `Retry` that exists is valid, its durations are float seconds, and every
delay it gives is finite, at least 0 and at most `max_delay` and 100 years.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast

import msgspec

from eventbus.durations import LONGEST, Duration, seconds
from eventbus.errors import DefinitionError
from eventbus.names import shown

__all__ = ["Backoff", "Retry"]

Backoff: TypeAlias = Literal["exponential", "fixed"] | Callable[[int, BaseException], Duration]
"""How delays grow: doubling, always the same, or `(attempt, error) -> delay` of one's own."""

_WIRE_FIELDS = ("attempts", "delay", "backoff", "max_delay", "jitter")
_MAX_DOUBLINGS = 64  # enough to reach LONGEST from a nanosecond; 2.0**1024 would overflow


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often and when a job that failed runs again.

    `attempts` is the total number of runs allowed, the first included. After the n-th failed
    attempt the job waits `delay * 2**(n-1)` (`"exponential"`), `delay` (`"fixed"`), or what
    `backoff(n, error)` returns. `max_delay` caps the wait; `jitter` (0..1) takes a random
    share of up to that part off it. Durations are kept as float seconds, so that rules
    written differently compare equal. Raises DefinitionError for values out of range.
    """

    attempts: int = 3
    delay: Duration = 1.0
    backoff: Backoff = "exponential"
    max_delay: Duration | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        attempts, backoff, jitter = cast("tuple[Any, Any, Any]", (self.attempts, self.backoff, self.jitter))
        if type(attempts) is not int or attempts < 1:
            raise DefinitionError(f"expected attempts to be a positive integer, got: {shown(attempts)}")
        if not callable(backoff) and backoff not in ("exponential", "fixed"):
            raise DefinitionError(
                f'expected backoff to be "exponential", "fixed" or a function of attempt and error, '
                f"got: {shown(backoff)}"
            )
        if isinstance(jitter, bool) or not isinstance(jitter, (int, float)) or not 0 <= jitter <= 1:
            raise DefinitionError(f"expected jitter to be a number from 0 to 1, got: {shown(jitter)}")
        msgspec.structs.force_setattr(self, "delay", seconds(self.delay, setting="delay"))
        msgspec.structs.force_setattr(self, "jitter", float(jitter))
        if self.max_delay is not None:
            msgspec.structs.force_setattr(self, "max_delay", seconds(self.max_delay, setting="max_delay"))

    def delay_after(
        self, attempt: int, error: BaseException, rng: Callable[[], float] = random.random
    ) -> float:
        """Return the seconds to wait after failed attempt number `attempt` (1 is the first).

        `rng` gives numbers in [0, 1) for the jitter. Does not look at `attempts`. An error of
        a custom strategy is raised as it is; DefinitionError if what it returns is no duration.
        """
        longest = LONGEST if self.max_delay is None else cast("float", self.max_delay)
        wait = min(self._wait(attempt, error), longest)
        return wait * (1.0 - self.jitter * rng()) if self.jitter else wait

    def _wait(self, attempt: int, error: BaseException) -> float:
        if callable(self.backoff):
            return seconds(self.backoff(attempt, error), setting="the delay returned by backoff")
        delay = cast("float", self.delay)
        if self.backoff == "fixed":
            return delay
        return math.ldexp(delay, min(attempt - 1, _MAX_DOUBLINGS))

    def to_wire(self) -> dict[str, Any]:
        """Return the rule as JSON values, for the envelope of an emission; `from_wire` reads it.

        Raises DefinitionError if `backoff` is a function: code does not travel.
        """
        if callable(self.backoff):
            raise DefinitionError(
                f'expected the backoff of an emission to be "exponential" or "fixed", '
                f"got: {shown(self.backoff)}; a function cannot be sent, set it on the handler"
            )
        return {name: getattr(self, name) for name in _WIRE_FIELDS}

    @classmethod
    def from_wire(cls, wire: object) -> Retry:
        """Return the rule that `to_wire` described.

        Missing fields have their defaults and unknown ones are ignored, so that releases can
        differ. Raises DefinitionError if `wire` is not such a description.
        """
        if not isinstance(wire, Mapping):
            raise DefinitionError(
                f"expected retry to be an object with attempts and delay, got: {shown(wire)}"
            )
        fields = cast("Mapping[str, Any]", wire)
        return cls(**{name: fields[name] for name in _WIRE_FIELDS if name in fields})
