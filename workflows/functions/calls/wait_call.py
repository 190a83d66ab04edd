"""Calls that wait without a worker: for a time, or for a signal.

What must always hold: the time at which a wait ends is recorded when it begins; that it has come, or that a
signal has, is recorded before the code goes on.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from eventbus.lowlevel import note_around
from workflows.definition.signal import Signal, signal_late
from workflows.functions.code_run import CodeRun, Scope, TimedCall
from workflows.functions.history import Record
from workflows.functions.origin import Origin, set_origin
from workflows.records.entries import Entry, chosen_id

R = TypeVar("R")


class SleepCall(TimedCall[None]):
    """A sleep of `delay_ms`."""

    __slots__ = ("_delay_ms",)

    family = "sleep"

    def __init__(self, run: CodeRun, scope: Scope, delay_ms: int) -> None:
        super().__init__(run, scope, "sleep")
        self._delay_ms = delay_ms

    def start(self, begun: Record | None) -> None:
        """Wait for the time that is recorded, or for one that is to be recorded."""
        self.is_fresh: bool = begun is None
        self.due_ms: int | None = self.run.now_ms + self._delay_ms if begun is None else begun.entry.due_ms
        self.run.pending[self.position] = self

    def began(self) -> Entry:
        """Return the entry of its beginning."""
        return Entry(
            kind="sleep",
            place=self.position,
            name=self.name,
            started_ms=self.run.now_ms,
            due_ms=self.due_ms or 0,
        )

    def read(self, record: Record) -> tuple[Any, BaseException | None]:
        """Return None: the time has come."""
        del record
        return None, None


class WaitCall(TimedCall[R]):
    """A wait for a signal, of at most `limit_ms` (None: without limit)."""

    __slots__ = ("_limit_ms", "signal")

    family = "wait"

    def __init__(self, run: CodeRun, scope: Scope, signal: Signal[Any], limit_ms: int | None) -> None:
        super().__init__(run, scope, signal.name)
        self.signal: Signal[Any] = signal
        self._limit_ms = limit_ms

    def start(self, begun: Record | None) -> None:
        """Wait for the signal until the time that is recorded, or one that is to be recorded."""
        self.is_fresh: bool = begun is None
        if begun is not None:
            self.due_ms = begun.entry.due_ms or None
        elif self._limit_ms is not None:
            self.due_ms = self.run.now_ms + self._limit_ms
        self.run.pending[self.position] = self

    def began(self) -> Entry:
        """Return the entry of its beginning."""
        now, due = self.run.now_ms, self.due_ms or 0
        return Entry(kind="wait", place=self.position, name=self.name, started_ms=now, due_ms=due)

    def came(self, payload: str, signal_id: str) -> Entry:
        """Return the entry of a signal that came. Raises PayloadError if it does not fit."""
        note_around(self.label, payload, self.signal.type)
        self.signal.decode(payload)
        return Entry(
            kind="signal",
            place=self.position,
            name=self.name,
            result=msgspec.Raw(payload.encode()),
            started_ms=self.run.now_ms,
            signal=chosen_id(signal_id),
        )

    def read(self, record: Record) -> tuple[Any, BaseException | None]:
        """Return the payload, or the error of a wait whose time has come."""
        if record.entry.kind == "signal":
            note_around(self.label, record.entry.result, self.signal.type)
            return self.signal.decode(memoryview(record.entry.result)), None
        late = signal_late(self.name)
        set_origin(late, Origin(self.label, ""))
        return None, late
