"""The report of a local flow's steps, from its journal.

What must always hold: a step that the journal does not mention is shown, too, as long as the journal or the
workflow that is registered here names it. Nothing says that a step runs at this moment. So it is shown as
active if the flow runs and all that it needs has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from eventbus import PayloadError
from workflows.definition.codecs import Codecs
from workflows.records.graph_history import GraphHistory, StepHistory
from workflows.records.ids import split_item
from workflows.records.records import error_text
from workflows.records.report import FlowState, StepReport, StepState

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
    flow = _Flow(history, codecs, root, state, ended)
    return {name: flow.report(name) for name in every}


class _Flow(NamedTuple):
    """What is known of a flow where one of its steps is reported; `ended` are the steps that have ended."""

    history: GraphHistory
    codecs: Codecs | None
    root: Mapping[str, str]
    state: FlowState
    ended: set[str]

    def report(self, name: str) -> StepReport:
        """Return the report of a step."""
        history = self.history
        known = history.steps.get(name)
        if known is None:
            shown = self._unrecorded(name)
            begun = int(self.root.get("claimed") or 0)
            return StepReport(step=name, state=shown, started_ms=begun if shown == "active" else 0)
        entry, shown = known.last, self._shown(known)
        done, total = history.count_items(name)
        if known.state == "active":  # its items are recorded
            shown = self._shown_items(name)
        result, error = None, error_text(entry.failure)
        if (
            shown == "failed"
            and (item := history.failed) is not None
            and split_item(item.step)[0] == name != item.step
        ):
            error = f"{item.step}: {error_text(item.last.failure)}"
        if shown == "completed":
            shown, result, error = typed_result(name, entry.result, self.codecs)
        is_open = shown in ("active", "delayed", "sleeping") or known.state == "sleeping"
        end_ms = entry.started_ms + entry.took_ms if entry.started_ms and not is_open else 0
        return StepReport(
            step=name,
            state=shown,
            result=result,
            attempts=entry.attempts,
            error=error,
            progress=f"{done}/{total}" if name in history.lists else None,
            items=self._items(history.item_states(name)),
            started_ms=entry.started_ms,
            ended_ms=end_ms,
        )

    def _items(self, states: dict[str, int]) -> dict[str, int]:
        """Return the states of a step's items; in a flow that is over, those that had not begun are
        cancelled.
        """
        if self.state in _OVER and (waiting := states.pop("waiting", 0)):
            states["cancelled"] = states.get("cancelled", 0) + waiting
        return states

    @property
    def _runs(self) -> bool:
        return self.root.get("state") == "active"

    def _shown_items(self, name: str) -> StepState:
        """Return the state of a step whose items have begun and whose end is not recorded."""
        failed = self.history.failed
        if failed is not None and split_item(failed.step)[0] == name:
            return "failed"
        if self.state in _OVER:
            return "cancelled"
        return "active" if self._runs else "waiting"

    def _shown(self, known: StepHistory) -> StepState:
        """Return the state of a step that has an entry, which another attempt may have followed since."""
        if known.state in ("delayed", "sleeping") and self.state in _OVER:
            return "cancelled"
        if known.state == "sleeping" and known.last.kind == "wait":
            return "waiting"
        is_cut = known.last.kind == "cut" and self.state not in _OVER
        is_due = int(self.root.get("now") or 0) >= known.last.due_ms
        if is_cut or (known.state == "delayed" and is_due):
            return "active" if self._runs else "waiting"
        return known.state

    def _unrecorded(self, name: str) -> StepState:
        is_ready = self._runs and self._is_ready(name)
        if self.state in _OVER:
            is_first = not self.root.get("knows") and not self.history.is_stopped
            return "active" if is_ready and is_first else "cancelled"
        return "active" if is_ready and not self.history.failed else "waiting"

    def _is_ready(self, name: str) -> bool:
        """Tell whether all that a step needs has ended, as far as the workflow is known here."""
        if self.codecs is None or name not in self.codecs.workflow.steps:
            return False
        return all(need in self.ended for need in self.codecs.workflow.plan.needs(name))


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
