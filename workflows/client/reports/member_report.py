"""The reports of steps that jobs of their own run, from the records of these jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.lowlevel import TreeMember
from workflows.client.reports.local_report import typed_result
from workflows.definition.codecs import Codecs
from workflows.records.graph_history import GraphHistory, StepHistory
from workflows.records.indeterminate import is_unknown
from workflows.records.records import decode_step, error_text
from workflows.records.report import StepReport, StepState

_STATES: dict[str, StepState] = {
    "waiting-children": "waiting",
    "waiting": "waiting",
    "parked": "waiting",
    "active": "active",
    "delayed": "delayed",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


def report_apart(
    step: StepReport, member: TreeMember, history: GraphHistory, codecs: Codecs | None
) -> StepReport:
    """Return the report of a step that a job or flow of its own runs.

    Its end is what the journal says, because that decides the order; the job has the rest.
    """
    is_flow = "~" in member.id.rpartition("/")[2]
    if step.step in history.open_children and not is_flow:
        return report_member(step.step, member, codecs)
    if step.step in history.open_children:
        state = _STATES.get(member.state, "damaged")
        shown = "active" if member.claimed and state == "waiting" else state
        return msgspec.structs.replace(step, state=shown, started_ms=member.claimed)
    attempts = step.attempts if is_flow else member.attempts
    return msgspec.structs.replace(step, attempts=attempts, started_ms=member.claimed)


def report_item(
    step: StepReport,
    member: TreeMember,
    history: GraphHistory,  # noqa: ARG001  (as `report_apart`)
    codecs: Codecs | None,  # noqa: ARG001
) -> StepReport:
    """Return the report of an each step with what the job of one of its items says: the step is active if an
    item is.
    """
    if member.state != "active":
        return step
    items = dict(step.items)
    if items.get("waiting"):  # nothing is recorded of it yet
        items["active"] = items.get("active", 0) + 1
        items["waiting"] -= 1
    state = "active" if step.state == "waiting" else step.state
    return msgspec.structs.replace(
        step, state=state, items={name: count for name, count in items.items() if count}
    )


def report_member(
    step: str, member: TreeMember, codecs: Codecs | None, known: StepHistory | None = None
) -> StepReport:
    """Return the report of a step whose job has the record of it; `known` is what the journal of its root
    says of it.
    """
    state: StepState = _STATES.get(member.state, "damaged")
    result: Any = None
    error = "" if state != "damaged" else f"no record of its job {member.id!r} that could be read"
    if state == "completed":
        state, result, error = _read_result(step, member.text, codecs)
    elif state == "delayed" and not member.text:
        state = _paused(member, known)
    elif state != "damaged" and member.text:
        error = error_text(member.text)
        if is_unknown(member.state, member.stalls, member.text):
            state = "unknown"
    return StepReport(
        step=step,
        state=state,
        result=result,
        attempts=member.attempts,
        error=error,
        started_ms=member.claimed,
        ended_ms=member.ended,
    )


def _paused(member: TreeMember, known: StepHistory | None) -> StepState:
    """Return the state of a step that began and waits: for a signal (then its root knows it), a time, or an
    attempt.
    """
    if known is not None and known.state == "sleeping":
        return "waiting"
    return "delayed" if member.attempts or member.state != "delayed" else "sleeping"


def _read_result(step: str, text: str, codecs: Codecs | None) -> tuple[StepState, Any, str]:
    """Return a completed step's state and result from its record, and the error if they cannot be read."""
    try:
        record = decode_step(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return "damaged", None, f"its record cannot be read: {error}"
    if record.skipped:
        return "skipped", None, ""
    if record.failure:  # it is ignored
        return "failed", None, error_text(record.failure)
    return typed_result(step, record.result, codecs)
