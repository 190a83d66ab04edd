"""The reports of flows of state machines, read from their snapshots and the newest entries of their journals.

What must always hold: place, state and documents are those of one move, because they are read by one
command; the entries are read
after them, and those of later moves are left out, so that a place is never newer than its moves, nor older.
What a body has not
recorded is in no report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from eventbus.lowlevel import FINAL_STATES
from workflows.client.reports.flow_report import report_flow, tree_of, value_in
from workflows.machines.choosing import MOVE, RETRY
from workflows.machines.snapshot import (
    ACCEPTS,
    STATE,
    Snapshot,
    documents_in,
    obligations_in,
    read_children,
    read_snapshot,
)
from workflows.records.entries import Entry
from workflows.records.records import FlowMessage, error_text
from workflows.records.report import (
    FlowReport,
    FlowStatus,
    FlowTree,
    MachineReport,
    MoveReport,
    StepReport,
    StepState,
)
from workflows.records.status import error_in

_KINDS = ("move", "try", "failed", "refused", "retry")
_BY_HAND = {name.removeprefix("!"): what for name, what in ((RETRY, "retry"), (MOVE, "move by hand"))}


def report_machine(
    flow_id: str,
    message: FlowMessage,
    root: Mapping[str, str],
    status: FlowStatus,
    entries: Sequence[Entry],
    live: Mapping[str, str],
) -> FlowReport:
    """Return the report of a flow whose root has these fields, with its newest entries and its live texts.
    Raises StoreCorrupt.
    """
    snapshot = read_snapshot(flow_id, live)
    entries = _up_to(snapshot, entries)
    steps = _steps(entries, snapshot, has_ended=status.state in FINAL_STATES)
    return report_flow(
        flow_id,
        message,
        root,
        status,
        steps=steps,
        order=[label for label, step in steps.items() if step.state == "completed"],
        undone=[
            (each.path, bytes(each.error).decode()) for each in obligations_in(flow_id, live) if each.is_done
        ],
        error=machine_error(root, status, snapshot),
        machine=_machine(flow_id, message, snapshot, entries, live, has_ended=status.state in FINAL_STATES),
    )


def tree_machine(
    report: FlowReport, entries: Sequence[Entry], nested: Mapping[str, list[FlowTree]]
) -> FlowTree:
    """Return a flow with the errors of attempts that another attempt followed, and of triggers that were
    refused.
    """
    errors: list[tuple[str, str]] = []
    for entry in entries:
        if entry.kind == "try" and entry.failure:
            errors.append((_label(entry), error_text(entry.failure)))
        elif entry.kind == "refused":
            what = _BY_HAND.get(entry.name, f"trigger {entry.name!r}")
            errors.append(("", f"{what} refused: {error_text(entry.failure)}"))
    return tree_of(report, errors, nested)


def machine_waits(flow_id: str, live: Mapping[str, str]) -> list[Entry]:
    """Return an entry for each trigger that a machine waits for, one for what is due later, and one for what
    failed for good and keeps it there.
    """
    snapshot = read_snapshot(flow_id, live)
    if snapshot is None:
        return []
    place, since = snapshot.place, snapshot.entered_ms
    found = [
        Entry(kind="wait", place=place, name=name.removeprefix("!"), started_ms=since)
        for name in live.get(ACCEPTS, "").split()
        if not name.startswith("!!")
    ]
    if due_ms := _due_of(snapshot):
        found.append(Entry(kind="sleep", place=place, started_ms=since, due_ms=due_ms))
    elif snapshot.trouble is not None and snapshot.trouble.origin == place:
        failed = snapshot.trouble.transition
        found.append(
            Entry(kind="failed", place=place, name=failed, started_ms=since, error=snapshot.trouble.error)
        )
    return found


def _machine(
    flow_id: str,
    message: FlowMessage,
    snapshot: Snapshot | None,
    entries: Sequence[Entry],
    live: Mapping[str, str],
    *,
    has_ended: bool,
) -> MachineReport:
    accepts = () if has_ended else live.get(ACCEPTS, "").split()
    return MachineReport(
        place="" if snapshot is None else snapshot.place,
        version=0 if snapshot is None else snapshot.moves,
        entered_ms=0 if snapshot is None else snapshot.entered_ms,
        due_ms=0 if snapshot is None or has_ended else _due_of(snapshot),
        state=value_in(live.get(STATE) or bytes(message.input)),
        documents={name: value_in(text) for name, text in documents_in(live).items()},
        accepts=[name.removeprefix("!") for name in accepts if not name.startswith("!!")],
        children=[child.id for child in read_children(flow_id, live)],
        moves=[
            MoveReport(
                kind=entry.kind,
                transition=entry.name,
                source=entry.origin,
                target=entry.place,
                version=entry.move,
                attempts=entry.attempts,
                error=error_text(entry.failure) if entry.failure else "",
                at_ms=entry.started_ms + entry.took_ms,
            )
            for entry in entries
            if entry.kind in _KINDS
        ],
    )


def _up_to(snapshot: Snapshot | None, entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries that were recorded up to a snapshot. An earlier run may have made more moves than
    the last one.
    """
    made = -1 if snapshot is None else snapshot.moves
    known = [place for place, each in enumerate(entries) if each.kind == "run" or each.move == made]
    first = known[-1] if known else 0
    later = (place for place in range(first, len(entries)) if _is_move_past(entries[place], made))
    return entries[: next(later, len(entries))]


def _is_move_past(entry: Entry, made: int) -> bool:
    return entry.kind == "move" and entry.move > made


def _due_of(snapshot: Snapshot) -> int:
    return snapshot.due_ms if snapshot.trouble is None else snapshot.trouble.due_ms


def machine_error(root: Mapping[str, str], status: FlowStatus, snapshot: Snapshot | None) -> str:
    """Return the error of a flow; of an open one that of the transition that failed last, while the machine
    stands at its place.
    """
    has_trouble = snapshot is not None and snapshot.trouble is not None and status.state not in FINAL_STATES
    if root.get("state") == "parked" or not has_trouble:
        return error_in(root, status.state)
    assert snapshot is not None  # noqa: S101  (asked above)
    assert snapshot.trouble is not None  # noqa: S101  (asked above)
    return error_text(snapshot.trouble.failure)


def _label(entry: Entry) -> str:
    number = entry.move if entry.kind == "move" and not entry.is_lost else entry.move + 1
    return f"{entry.name}@{number}"


def _steps(entries: Sequence[Entry], snapshot: Snapshot | None, *, has_ended: bool) -> dict[str, StepReport]:
    """Return a step for each transition that fired, and for the one that failed last."""
    found: dict[str, StepReport] = {}
    states: dict[str, StepState] = {"move": "completed", "try": "delayed", "failed": "failed"}
    for entry in entries:
        if entry.kind not in states or not entry.name or entry.is_lost:
            continue
        found[_label(entry)] = StepReport(
            step=_label(entry),
            state="cancelled" if entry.kind == "try" and has_ended else states[entry.kind],
            result=value_in(bytes(entry.result)),
            attempts=entry.attempts,
            error=error_text(entry.failure) if entry.failure else "",
            started_ms=entry.started_ms,
            ended_ms=0 if entry.kind == "try" else entry.started_ms + entry.took_ms,
        )
    trouble = None if snapshot is None else snapshot.trouble
    for label, step in found.items():
        is_pending = (
            trouble is not None and not trouble.is_over and label.startswith(f"{trouble.transition}@")
        )
        if step.state == "delayed" and not is_pending:
            found[label] = msgspec.structs.replace(step, state="cancelled")
    return found
