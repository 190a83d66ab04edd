"""Pauses: what a step without a function waits for, a time or a signal.

What must always hold: a pause is checked when it is defined; its length is in seconds.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from eventbus.lowlevel import Duration, mark_own, seconds
from workflows.definition.checks.declared_errors import mark_last
from workflows.definition.signal import Signal, signal_late


class Pause(msgspec.Struct, frozen=True):
    """A sleep of `length` seconds, or a wait for `signal` of at most `length` seconds (None: without
    limit).
    """

    length: float | None
    signal: Signal[Any] | None = None

    @property
    def kind(self) -> str:
        """The word of entries for its beginning."""
        return "sleep" if self.signal is None else "wait"

    @property
    def name(self) -> str:
        """The name of the signal; empty for a sleep."""
        return "" if self.signal is None else self.signal.name

    @property
    def result(self) -> Any:
        """The type of the result."""
        return None if self.signal is None else self.signal.type


def sleep_for(length: Duration, where: str) -> Pause:
    """Return a sleep. Raises DefinitionError, naming `where`, for what is no duration."""
    return Pause(seconds(length, setting=f"duration of {where}"))


def wait_for(signal: Any, type: Any, timeout: Duration | None, where: str) -> Pause:  # noqa: A002
    """Return a wait for a signal, given as itself or by its name and type. Raises DefinitionError."""
    known = cast("Signal[Any]", signal if isinstance(signal, Signal) else Signal[Any](signal, type))
    limit = None if timeout is None else seconds(timeout, setting=f"timeout of {where}") or None
    return Pause(limit, known)


def late(pause: Pause) -> TimeoutError:
    """Return the error of a wait whose signal did not come in time."""
    error = signal_late(pause.name)
    mark_own(error)  # a declared TimeoutError of the workflow does not apply to it
    mark_last(error)
    return error
