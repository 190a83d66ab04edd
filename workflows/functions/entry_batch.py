"""What one append of a run records, and the calls whose end that is.

What must always hold: signals go to waits in the order in which they came; a wait that a signal and its time
end at once is ended by the signal, because somebody may rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus import PayloadError
from eventbus.lowlevel import describe, get_logger, hidden_around
from workflows.errors import NonDeterminismError
from workflows.execution.step_attempt import cleared
from workflows.functions.calls.child_call import ChildCall
from workflows.functions.calls.step_call import StepCall
from workflows.functions.calls.wait_call import SleepCall, WaitCall
from workflows.functions.code_run import Call, CodeRun
from workflows.functions.history import split_position
from workflows.records.entries import Entry, chosen_id

if TYPE_CHECKING:
    from eventbus.lowlevel import Signal
    from workflows.functions.code_run import TimedCall

_MOST_ENTRIES = 1000
_MOST_BYTES = 4 << 20
_log = get_logger("workflows")


class EntryBatch:
    """Entries to append, in order, each with the call that it ends, if any."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.done: int = 0
        """How many of the first entries tell what was done here; those behind them tell what came, and what
        follows.
        """
        self.ends: dict[int, Call[Any]] = {}
        self.taken: list[str] = []
        self.live: dict[str, str] = {}

    def add(self, entry: Entry, ends: Call[Any] | None = None) -> None:
        """Add an entry; it is the end of the call `ends`."""
        if ends is not None:
            self.ends[len(self.entries)] = ends
        self.entries.append(entry)

    def parts(self) -> Iterator[tuple[list[Entry], dict[str, str], list[str]]]:
        """Yield the appends to make; the last one takes the signals and has the live texts."""
        first, size = 0, 0
        for place, entry in enumerate(self.entries):
            added = len(bytes(entry.result)) + len(bytes(entry.error))
            if place > first and (place - first >= _MOST_ENTRIES or size + added > _MOST_BYTES):
                yield self.entries[first:place], {}, []
                first, size = place, 0
            size += added
        yield self.entries[first:], self.live, self.taken

    def settle(self, run: CodeRun) -> None:
        """Put the entries into the history, now that they are recorded, and tell the calls whose end they
        are.
        """
        long, most = run.history.length, run.durable.max_history * 0.8
        for place, entry in enumerate(self.entries):
            record = run.history.add(entry)
            call = self.ends.get(place)
            if call is None:
                continue
            if entry.kind == "race":
                run.races.pop(entry.place, None)
                call.decided(record)  # type: ignore[attr-defined]
            elif not call.is_closed:
                try:
                    call.end(record)
                except NonDeterminismError:  # the run knows, and ends
                    return
        for key, text in self.live.items():
            if run.live.get(key) == text:
                del run.live[key]
        if long < most <= run.history.length:
            _log.warning("history is long", **run.around.facts, entries=run.history.length)


def collect(run: CodeRun, doubts_of: Callable[[Entry], list[Entry]]) -> EntryBatch:
    """Return what is to be recorded now: what the code said, what ended, what came, what began, and
    who won.

    `doubts_of` returns the entries of steps that may have begun, for a race that they lost.
    """
    batch = EntryBatch()
    for entry in run.outbox:
        batch.add(entry)
    run.outbox.clear()
    _add_steps(run, batch)
    batch.done = len(batch.entries)
    run.has_fresh_children = False
    if run.pending:
        _add_signals(run, batch)
        _add_times(run, batch)
    for race in sorted(run.races.values(), key=lambda one: split_position(one.position)):
        if race.is_closed or race.is_decided:
            run.races.pop(race.position)
        else:
            decision = race.decide()
            for doubt in doubts_of(decision):
                batch.add(doubt)
            batch.add(decision, race)
    if batch.entries or run.has_news():
        batch.live |= run.live
    return batch


def _add_steps(run: CodeRun, batch: EntryBatch) -> None:
    ended, run.ended = run.ended, []
    for call, entry in ended:
        if isinstance(call, StepCall) and entry.kind == "try":
            call.due_ms = entry.due_ms
            if not call.is_closed:
                run.pending[call.position] = call
            batch.add(entry)
        else:
            batch.add(entry, None if entry.kind == "cut" else call)
        if isinstance(call, StepCall) and call.has_saved and entry.kind in ("step", "failed"):
            batch.live |= cleared(call.saved_as)


def _in_order(run: CodeRun) -> list[TimedCall[Any]]:
    """Return the pending calls, those that began first before the others."""

    def began(call: TimedCall[Any]) -> tuple[int, list[int]]:
        record = run.history.begun.get(call.position)
        return (
            record.number if record is not None else run.history.number + 1,
            split_position(call.position),
        )

    return sorted(run.pending.values(), key=began)


def _add_signals(run: CodeRun, batch: EntryBatch) -> None:
    waits = [call for call in _in_order(run) if isinstance(call, WaitCall)]
    if not waits:
        return
    for signal in run.recorder.signals:
        wait = next((call for call in waits if call.name == signal.name), None)
        if wait is None:
            continue
        batch.taken.append(signal.id)
        try:
            entry = wait.came(signal.payload, signal.id)
        except PayloadError as error:
            _refuse(run, batch, signal, error)
            continue
        waits.remove(wait)
        del run.pending[wait.position]
        batch.add(entry, wait)


def _refuse(run: CodeRun, batch: EntryBatch, signal: Signal, error: PayloadError) -> None:
    """Record that a signal did not fit, and wait on: its sender was wrong, not the flow."""
    _log.warning(
        "signal refused, its payload does not fit",
        **run.around.facts,
        signal=signal.name,
        error=hidden_around().shown(str(error)),
    )
    failure = msgspec.Raw(describe(error, attempts=1).encode())
    entry = Entry(kind="refused", name=signal.name, error=failure, started_ms=run.now_ms)
    entry.signal = chosen_id(signal.id)
    batch.add(entry)


def _add_times(run: CodeRun, batch: EntryBatch) -> None:
    """Add the beginnings of waits, and the times that have come, the earliest first."""
    now = run.now_ms
    for call in _in_order(run):
        if isinstance(call, (SleepCall, WaitCall, ChildCall)) and call.is_fresh:
            call.is_fresh = False
            batch.add(call.began())
            if isinstance(call, ChildCall):
                run.begun_children.append(call)
    due = [call for call in run.pending.values() if call.due_ms is not None and call.due_ms <= now]
    due = [call for call in due if run.may_begin(call)]
    for call in sorted(due, key=lambda one: (one.due_ms or 0, split_position(one.position))):
        del run.pending[call.position]
        if isinstance(call, (SleepCall, WaitCall)):
            batch.add(Entry(kind="due", place=call.position, name=call.name, started_ms=now), call)
        else:
            run.fresh.append(call)  # type: ignore[arg-type]  # a step whose pause is over
