"""The entries of a graph's steps: what the end of a step records, and a run of a graph as its journal says.

What must always hold: what `entry_of` records, `restore_graph` reads.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import msgspec

from workflows.definition.workflow import Workflow
from workflows.execution.graph_state import GraphState
from workflows.execution.step_run import StepRun, begin_items
from workflows.records.entries import Entry, chosen_id
from workflows.records.graph_history import ENDED, GraphHistory, StepHistory, record_of
from workflows.records.ids import split_item
from workflows.records.records import error_text, stalls_in


def restore_graph(
    workflow: Workflow[Any, Any], history: GraphHistory, kept: Collection[str], now_ms: int
) -> GraphState:
    """Return the state of a graph that its journal tells; `kept` are the steps whose results count from an
    earlier run.
    """
    graph = GraphState(workflow, kept=kept)
    for name, entry in history.lists.items():
        if (run := graph.steps.get(name)) is not None and run.step.is_each:
            begin_items(run, entry.result)
    for name, known in history.steps.items():
        if (run := graph.find(name)) is not None:
            _restore(run, known, now_ms)
    for name in history.order:
        if (run := graph.find(name)) is not None and run.state in ENDED:
            graph.restore(run)
    return graph


OWES_UNDO = "rollback"
"""The `undo` of the entry about the end of a step that a rollback undoes."""


def find_lost_undo(history: GraphHistory, workflow: Workflow[Any, Any]) -> str:
    """Return a step whose rollback is owed and not done, and is not in this definition; empty if there is
    none.
    """
    for name in history.order:
        step = workflow.steps.get(split_item(name)[0])
        is_owed = bool(history.steps[name].last.undo) and name not in history.undone
        if is_owed and step is not None and step.undo is None:
            return name
    return ""


def misfit(history: GraphHistory, workflow: Workflow[Any, Any]) -> str:
    """Return how what is recorded differs from the steps of a workflow, so that it cannot be read with them;
    empty if it fits.

    It tells of a step that is missing in one of both, of an each step that is a plain one in the other, and
    of an each step whose items were recorded under another `on_failure`.
    """
    if history.names and (other := set(history.names).symmetric_difference(workflow.steps)):
        return f"version {history.version} with or without step {min(other)}"
    for name, begun in history.lists.items():
        step = workflow.steps.get(name)
        if step is not None and not step.is_each:
            return f"the each step {name}"
        if step is not None and begun.keeps_failures != step.keeps_failures:
            return f"another on_failure of step {name}"
    for name, step in workflow.steps.items():
        if step.is_each and name not in history.lists and _is_plain(name, history):
            return f"the plain step {name}"
    return ""


def _is_plain(name: str, history: GraphHistory) -> bool:
    """Tell whether a step without a list of items has recorded what an each step never does."""
    known = history.steps.get(name)
    return name in history.children or (known is not None and known.state == "completed")


def _restore(run: StepRun, known: StepHistory, now_ms: int) -> None:
    entry = known.last
    run.attempts, run.is_started = entry.attempts, True
    run.has_saved = entry.kind in ("try", "cut")
    run.started_ms, run.took_ms = entry.started_ms, entry.took_ms
    if entry.kind == "step":
        run.complete(record_of(entry))
        return
    if entry.kind == "each":  # its items go on
        run.state = "waiting"
        return
    run.failure = entry.failure
    run.told = error_text(run.failure) if run.failure else ""
    if entry.kind in ("try", "sleep", "wait"):
        run.state = "delayed" if entry.kind == "try" else "sleeping"
        run.due_ms = entry.due_ms
        run.delay = max(entry.due_ms - now_ms, 0) / 1000 if entry.due_ms else math.inf
    elif entry.kind == "failed":
        run.state = "failed"


def entry_of(run: StepRun) -> Entry:
    """Return the entry about the end of a step or of its attempt."""
    entry = Entry(
        kind="step",
        place=run.step.name,
        attempts=run.attempts,
        started_ms=run.started_ms,
        took_ms=run.took_ms,
    )
    entry.child = run.child
    if run.wants_undo:
        entry.undo = OWES_UNDO
    if run.signal:
        entry.signal = chosen_id(run.signal)
    pause = run.step.pause
    if run.record is not None:
        entry.result, entry.skipped = run.record.result, run.record.skipped
        entry.traceparent = run.record.traceparent
        if run.record.error:
            entry.error, entry.is_lost = run.record.error, _is_lost(run)
    elif run.state == "active" and run.items is not None:
        step = run.items.step
        entry.kind, entry.result = "each", run.items.given
        entry.at_once, entry.keeps_failures = step.at_once, step.keeps_failures
    elif run.state == "sleeping" and pause is not None:
        entry.kind, entry.name, entry.due_ms = pause.kind, pause.name, run.due_ms
    elif run.state in ("failed", "delayed"):
        entry.kind = "failed"
        if run.failure:  # otherwise it is put off
            entry.error = msgspec.Raw(run.failure.encode())
        entry.is_lost = _is_lost(run)
        if run.state == "delayed":
            entry.kind, entry.due_ms = "try", run.due_ms
    else:
        entry.kind, entry.is_lost = "cut", run.state == "unknown"
    return entry


def _is_lost(run: StepRun) -> bool:
    """Tell whether a step that failed may have taken effect: a job of its own, whose workers died."""
    return bool(run.child) and run.step.workflow is None and stalls_in(run.failure) > 0
