"""The reports of flows of durable functions, read from their journals.

What must always hold: each call has one report, named by its name and position; what is open in a flow that
has ended is cancelled, and so is what lost a race; what may have taken effect without completing is unknown,
a job of a map, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eventbus.lowlevel import FINAL_STATES
from workflows.client.reports.flow_report import report_flow, tree_of, value_in
from workflows.definition.signal import signal_late
from workflows.functions.calls.kept import Kept, kept_entries
from workflows.functions.history import is_under, losers
from workflows.functions.rollbacks import undone_in
from workflows.records.entries import Entry
from workflows.records.ids import is_nested
from workflows.records.records import FlowMessage, error_text
from workflows.records.report import FlowReport, FlowStatus, FlowTree, StepReport, StepState

_STATES: dict[str, StepState] = {
    "step": "completed",
    "failed": "failed",
    "try": "delayed",
    "child": "active",
    "cut": "cancelled",
    "sleep": "sleeping",
    "wait": "waiting",
    "due": "completed",
    "signal": "completed",
}
_OPEN = ("delayed", "sleeping", "waiting", "active")


def report_durable(
    flow_id: str, message: FlowMessage, root: Mapping[str, str], status: FlowStatus, entries: Sequence[Entry]
) -> FlowReport:
    """Return the report of a flow whose root has these fields, and whose journal has these entries."""
    kept = kept_entries(entries)
    steps = _steps(kept, has_ended=status.state in FINAL_STATES)
    return report_flow(
        flow_id,
        message,
        root,
        status,
        steps=steps,
        order=_completed(kept, steps),
        undone=undone_in(kept.entries).items(),
    )


def tree_durable(
    report: FlowReport, entries: Sequence[Entry], nested: Mapping[str, list[FlowTree]]
) -> FlowTree:
    """Return a flow with the errors of attempts that another attempt followed."""
    errors: list[tuple[str, str]] = []
    for entry in kept_entries(entries).entries:
        if entry.kind == "try" and entry.failure:  # otherwise it was put off
            errors.append((_label(entry), error_text(entry.failure)))
        elif entry.kind == "refused":
            errors.append(("", f"signal {entry.name!r} refused: {error_text(entry.failure)}"))
    return tree_of(report, errors, nested)


def children_of(flow_id: str, entries: Sequence[Entry]) -> dict[str, str]:
    """Return the flows that the code has started, by the label of the call."""
    return {
        _label(entry): entry.child
        for entry in kept_entries(entries).entries
        if entry.kind == "child" and is_nested(entry.child, flow_id)
    }


def open_children_of(flow_id: str, entries: Sequence[Entry]) -> dict[str, str]:
    """Return the flows that the code has started and whose ends are not recorded, by the label of the
    call.
    """
    states = _steps(kept_entries(entries), has_ended=False)
    started = children_of(flow_id, entries)
    return {label: child for label, child in started.items() if states[label].state == "active"}


def count_completed(entries: Sequence[Entry]) -> int:
    """Return how many steps of the current run have completed."""
    return sum(entry.kind == "step" for entry in kept_entries(entries).entries)


def waits_of(entries: Sequence[Entry]) -> list[Entry]:
    """Return the waits and sleeps that are open, the oldest first."""
    kept = kept_entries(entries)
    states = _steps(kept, has_ended=False)
    return [
        entry
        for entry in kept.entries
        if entry.kind in ("wait", "sleep") and states[_label(entry)].state in ("waiting", "sleeping")
    ]


def _label(entry: Entry) -> str:
    return f"{entry.name}@{entry.place}"


def _steps(kept: Kept, *, has_ended: bool) -> dict[str, StepReport]:
    last: dict[str, Entry] = {}
    began: dict[str, Entry] = {}
    for entry in kept.entries:
        if entry.kind in _STATES:
            label = _label(entry)
            began.setdefault(label, entry)
            last[label] = entry
    lost = _lost(kept)
    return {
        label: _report(label, began[label], entry, is_closed=has_ended or is_under(entry.place, lost))
        for label, entry in last.items()
    }


def _report(label: str, began: Entry, entry: Entry, *, is_closed: bool) -> StepReport:
    state, error = _STATES[entry.kind], error_text(entry.failure) if entry.failure else ""
    if entry.kind == "due" and began.kind == "wait":
        state, error = "failed", f"TimeoutError: {signal_late(entry.name)}"
    if is_closed and state in _OPEN:
        state = "cancelled"
    if entry.is_lost and state in ("failed", "cancelled"):
        state = "unknown"
    return StepReport(
        step=label,
        state=state,
        result=value_in(entry.result),
        attempts=entry.attempts,
        error=error,
        started_ms=began.started_ms,
        ended_ms=0 if state in _OPEN else entry.started_ms + entry.took_ms,
    )


def _completed(kept: Kept, steps: Mapping[str, StepReport]) -> list[str]:
    ends = [_label(entry) for entry in kept.entries if entry.kind in ("step", "signal", "due")]
    return [label for label in ends if steps[label].state == "completed"]


def _lost(kept: Kept) -> list[str]:
    """Return the positions of the calls and branches that lost a race, of those that count in any case."""
    return [
        place
        for number, entry in enumerate(kept.entries)
        if entry.kind == "race" and number not in kept.loose
        for place in losers(entry)
    ]
