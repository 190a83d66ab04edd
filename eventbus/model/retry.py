"""The retry rule: how often and when a failed job runs again, as a value.

Not here: which errors count as failures, stalls, how an error from another process is told
(`telemetry.failure`), and which rule wins (emission over handler over event over provider).
`handlers.consumer` decides these for events, `workflows.execution.step_runner` for steps; a stall is the
rescuer's matter. What must always hold: a `Retry` that exists is valid, its durations are float seconds, and
every delay that it returns is finite, at least 0, and at most `max_delay` and 100 years.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model import chance
from eventbus.model.containment import contained
from eventbus.model.durations import LONGEST, Duration, seconds
from eventbus.model.names import shown

Backoff: TypeAlias = Literal["exponential", "fixed"] | Callable[[int, BaseException], Duration]
"""How delays grow: they double, stay the same, or come from a function `(attempt, error) -> delay`."""

_WIRE_FIELDS = ("attempts", "delay", "backoff", "max_delay", "jitter")
_MAX_DOUBLINGS = 64  # enough to reach LONGEST from a nanosecond; 2.0**1024 would overflow


class _Attempts(msgspec.Struct, frozen=True):
    """The one field of a `Retry` that may be given by position: `Retry(5)`."""

    attempts: int = 3


class Retry(_Attempts, frozen=True, kw_only=True):
    """How often and when a failed job runs again.

        Retry(5, delay="2s", max_delay="1m", jitter=0.2)

    `attempts` is the total number of runs allowed, including the first. After the n-th failed attempt the job
    waits `delay * 2**(n-1)` (`"exponential"`), `delay` (`"fixed"`), or the duration that `backoff(n, error)`
    returns. `max_delay` is the longest wait. `jitter` (0 to 1) shortens each wait by a random share, at most
    by this one. Durations are kept as float seconds, so that equal rules compare equal however they were
    written.

        Retry(5, only=(ConnectionError, TimeoutError))
        Retry(5, never=(ValueError,))

    With `only`, an error of another kind fails the job at once, as one in `never` does; subclasses count. An
    attempt that timed out ends in a TimeoutError, one whose process died in a ProcessDied.

    Raises DefinitionError for values out of range, and for kinds that contradict each other.
    """

    delay: Duration = 1.0
    backoff: Backoff = "exponential"
    max_delay: Duration | None = None
    jitter: float = 0.0
    only: tuple[type[Exception], ...] = ()
    never: tuple[type[Exception], ...] = ()

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
        if self.only != () or self.never != ():
            for name in ("only", "never"):
                msgspec.structs.force_setattr(self, name, _check_kinds(getattr(self, name), name))
            self._check_contradictions()

    def _check_contradictions(self) -> None:
        lost = next((kind for kind in self.only if issubclass(kind, self.never)), None)
        if lost is not None:
            raise DefinitionError(
                f"only and never of a Retry contradict each other: {shown(lost)} is in only, but never has "
                "it or a class that it inherits from; take it out of one of them"
            )
        if self.attempts == 1:
            raise DefinitionError(
                "a Retry with attempts=1 never tries again, so only and never mean nothing; leave them out, "
                "or allow more attempts"
            )

    def delay_after(
        self, attempt: int, error: BaseException, rng: Callable[[], float] | None = None
    ) -> float:
        """Return the seconds to wait after failed attempt number `attempt` (1 is the first).

        `rng` returns numbers in [0, 1) for the jitter. The method does not check `attempts`. It raises the
        errors of a custom `backoff`, and DefinitionError if that returns something other than a duration.
        """
        longest = LONGEST if self.max_delay is None else cast("float", self.max_delay)
        wait = min(self._wait(attempt, error), longest)
        return wait * (1.0 - self.jitter * (rng or chance.jitter)()) if self.jitter else wait

    def _wait(self, attempt: int, error: BaseException) -> float:
        if callable(self.backoff):
            return seconds(contained(self.backoff, attempt, error), setting="the delay returned by backoff")
        delay = cast("float", self.delay)
        if self.backoff == "fixed":
            return delay
        return math.ldexp(delay, min(attempt - 1, _MAX_DOUBLINGS))

    def to_wire(self) -> dict[str, Any]:
        """Return the rule as JSON values, for the envelope of an emission; `from_wire` reads them.

        Raises DefinitionError if `backoff` is a function or kinds of errors are named, because code cannot be
        sent.
        """
        if self.only or self.never:
            raise DefinitionError(
                "the retry of an emission cannot have only or never, because classes cannot be sent; set it "
                "on the handler or the event"
            )
        if callable(self.backoff):
            raise DefinitionError(
                f'expected the backoff of an emission to be "exponential" or "fixed", '
                f"got: {shown(self.backoff)}; a function cannot be sent, set it on the handler"
            )
        return {name: getattr(self, name) for name in _WIRE_FIELDS}

    @classmethod
    def from_wire(cls, wire: object) -> Retry:
        """Return the rule that `to_wire` described.

        Missing fields have their defaults and unknown fields are ignored, so that two releases can run side
        by side. Raises DefinitionError for other values.
        """
        if not isinstance(wire, Mapping):
            raise DefinitionError(
                f"expected retry to be an object with attempts and delay, got: {shown(wire)}"
            )
        fields = cast("Mapping[str, Any]", wire)
        return cls(**{name: fields[name] for name in _WIRE_FIELDS if name in fields})


def _check_kinds(given: Any, name: str) -> tuple[type[Exception], ...]:
    if given == ():
        return ()
    what = f"expected {name} of a Retry to be a tuple of exception classes, such as (ConnectionError,)"
    if not isinstance(given, (tuple, list)) or not given:
        raise DefinitionError(f"{what}, got: {shown(cast('object', given))}")
    kinds = tuple(cast("Sequence[object]", given))
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise DefinitionError(f"{what}, got: {shown(cast('object', kind))}")
    return cast("tuple[type[Exception], ...]", kinds)


def check_default(rule: Retry, event: str, *, retry_on: Sequence[type[Exception]]) -> None:
    """Raise DefinitionError if the rule of the provider rules out what an event without a rule wants to be
    retried.

    It is the rule of many events, so it may name errors that one of them declares as answers: that event
    decides.
    """
    try:
        check_answers(rule, f"the provider, which holds for event {event!r},", errors=(), retry_on=retry_on)
    except DefinitionError as error:
        raise DefinitionError(f"{error}, or give the event a retry of its own") from None


def check_answers(
    rule: Retry | None, where: str, *, errors: Sequence[type[Exception]], retry_on: Sequence[type[Exception]]
) -> None:
    """Raise DefinitionError, naming `where`, if a rule contradicts what is declared: `errors` are answers,
    but not `retry_on`.
    """
    if rule is None:
        return
    for kind in rule.only:
        if issubclass(kind, tuple(errors)) and not issubclass(kind, tuple(retry_on)):
            raise DefinitionError(
                f"the retry of {where} has {shown(kind)} in only, but it is declared in errors and so an "
                "answer, which is not retried; add it to retry_on, or take it out of only"
            )
    for kind in retry_on:
        if rule.only and not issubclass(kind, rule.only):
            raise DefinitionError(
                f"the retry of {where} has an only without {shown(kind)}, but retry_on has it; add it to "
                "only, or take it out of retry_on"
            )
        if issubclass(kind, rule.never):
            raise DefinitionError(
                f"the retry of {where} has {shown(kind)} in never, but retry_on has it too; take it out of "
                "one of them"
            )
