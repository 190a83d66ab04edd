"""The report of a local flow's steps, from its journal.

What must always hold: a step that the journal does not mention is shown, too, as long as the journal or the
workflow that is registered here names it. Nothing says that a step runs at this moment. So it is shown as
active if the flow runs and all that it needs has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventbus import PayloadError
from workflows.definition.codecs import Codecs
from workflows.records.entries import Entry
from workflows.records.graph_history import GraphHistory, StepHistory
from workflows.records.ids import split_item
from workflows.records.records import error_text
from workflows.records.report import FlowState, StepReport, StepState

__all__ = ["report_local", "typed_result"]

_OVER = ("completed", "failed", "cancelled", "rolling_back")


def report_local(
    history: GraphHistory, codecs: Codecs | None, root: Mapping[str, str], state: FlowState
) -> dict[str, StepReport]:
    """Return the reports of all steps that are known, in the order of definition.

    `root` are the fields of the flow's root job, and `state` is the state of the flow.
    """
    names: Sequence[str] = history.names or (list(codecs.workflow.steps) if codecs is not None else ())
    every = dict.fromkeys([*names, *(name for name in history.steps if split_item(name)[1] < 0)])
    ended = {step for step in history.order if history.steps[step].last.kind == "step"}
    return {name: _report(name, history, codecs, root, state, ended) for name in every}


def _report(
    name: str,
    history: GraphHistory,
    codecs: Codecs | None,
    root: Mapping[str, str],
    state: FlowState,
    ended: set[str],
) -> StepReport:
    known = history.steps.get(name)
    if known is None:
        shown = _unrecorded(name, history, codecs, root, state, ended)
        return StepReport(step=name, state=shown, started_ms=_begun(root) if shown == "active" else 0)
    entry, shown = known.last, _shown(known, root, state)
    done, total = history.count_items(name)
    if known.state == "active":  # its items are recorded
        shown = _shown_items(name, history, root, state)
    result, error = None, error_text(entry.failure) if entry.failure else ""
    if (
        shown == "failed"
        and (item := history.failed) is not None
        and split_item(item.step)[0] == name != item.step
    ):
        error = f"{item.step}: {error_text(item.last.failure)}"
    if shown == "completed":
        shown, result, error = typed_result(name, entry.result, codecs)
    is_open = shown in ("active", "delayed", "sleeping") or known.state == "sleeping"
    end_ms = entry.started_ms + entry.took_ms if entry.started_ms and not is_open else 0
    return StepReport(
        step=name,
        state=shown,
        result=result,
        attempts=entry.attempts,
        error=error,
        progress=f"{done}/{total}" if name in history.lists else None,
        items=_items(history.item_states(name), state),
        started_ms=entry.started_ms,
        ended_ms=end_ms,
    )


def _items(states: dict[str, int], state: FlowState) -> dict[str, int]:
    """Return the states of a step's items; in a flow that is over, those that had not begun are cancelled."""
    if state in _OVER and (waiting := states.pop("waiting", 0)):
        states["cancelled"] = states.get("cancelled", 0) + waiting
    return states


def _shown_items(name: str, history: GraphHistory, root: Mapping[str, str], state: FlowState) -> StepState:
    """Return the state of a step whose items have begun and whose end is not recorded."""
    failed = history.failed
    if failed is not None and split_item(failed.step)[0] == name:
        return "failed"
    if state in _OVER:
        return "cancelled"
    return "active" if root.get("state") == "active" else "waiting"


def _shown(known: StepHistory, root: Mapping[str, str], state: FlowState) -> StepState:
    """Return the state of a step that has an entry, which another attempt may have followed since."""
    if known.state in ("delayed", "sleeping") and state in _OVER:
        return "cancelled"
    if known.state == "sleeping" and known.last.kind == "wait":
        return "waiting"
    is_cut = known.last.kind == "cut" and state not in _OVER
    if is_cut or (known.state == "delayed" and _is_due(known.last, root)):
        return "active" if root.get("state") == "active" else "waiting"
    return known.state


def _is_due(entry: Entry, root: Mapping[str, str]) -> bool:
    return int(root.get("now") or 0) >= entry.due_ms


def _unrecorded(
    name: str,
    history: GraphHistory,
    codecs: Codecs | None,
    root: Mapping[str, str],
    state: FlowState,
    ended: set[str],
) -> StepState:
    if state in _OVER:
        is_first = root.get("state") == "active" and not root.get("knows")
        return (
            "active"
            if is_first and _is_ready(name, codecs, ended) and not history.is_stopped
            else "cancelled"
        )
    if root.get("state") == "active" and not history.failed and _is_ready(name, codecs, ended):
        return "active"
    return "waiting"


def _is_ready(name: str, codecs: Codecs | None, ended: set[str]) -> bool:
    """Tell whether all that a step needs has ended, as far as the workflow is known here."""
    if codecs is None or name not in codecs.workflow.steps:
        return False
    return all(need in ended for need in codecs.workflow.plan.needs(name))


def _begun(root: Mapping[str, str]) -> int:
    return int(root.get("claimed") or 0)


def typed_result(step: str, result: msgspec.Raw, codecs: Codecs | None) -> tuple[StepState, Any, str]:
    """Return a completed step's state and result from its JSON, and the error if it cannot be read."""
    try:
        untyped = msgspec.json.decode(result)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return "damaged", None, f"its record cannot be read: {error}"
    if codecs is None or step not in codecs.workflow.steps:
        return "completed", untyped, ""
    try:
        return "completed", codecs.result(step).decode(memoryview(result)), ""
    except PayloadError as error:
        return "completed", None, str(error)
