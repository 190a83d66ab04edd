"""Steering: how a test kit sees, fails and replaces the functions of an extension, such as the steps of
flows.

An extension that has such functions offers the methods of `Steered`. Not here: who steers
(`eventbus.testing`), and the functions of events, which have middleware of their own.

What must always hold: nobody steers in production, so a worker pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from eventbus.handlers.middleware import CallNext


class RunFacts(msgspec.Struct, frozen=True):
    """One run of a function.

    `name` is that of the workflow and the step, such as `invoice.remind`; a rollback ends in `.rollback`.
    `flow` is the id of its flow. `attempt` counts from 1.
    """

    name: str
    flow: str
    attempt: int


Around: TypeAlias = Callable[[Any, RunFacts, CallNext], Awaitable[Any]]
"""An async function of a value, the facts of the run, and the call to go on with; it returns the result."""


class SteeringTarget(msgspec.Struct, frozen=True):
    """What a test names, by an object or by text. `matches(name)` says whether a run is meant.

    `check(value)` raises PayloadError, or UsageError, unless the function may return such a value.
    """

    name: str
    matches: Callable[[str], bool]
    check: Callable[[Any], object]


@runtime_checkable
class Steered(Protocol):
    """An extension whose functions can be steered."""

    def steer(self, around: Around) -> Callable[[], None]:
        """Put `around` inside of all middleware, in workers that start from now on.

        Returns the function that takes it away again.
        """
        ...

    def find_target(self, given: object) -> SteeringTarget | None:
        """Return what a test names by an object, or by the name of a run; None if it is none of these."""
        ...

    @property
    def targets(self) -> Collection[str]:
        """The names that `find_target` knows."""
        ...
