"""The doubts about steps of a local flow: which ones may have run when a worker died.

    claimed with a stall -> steps that may have run are in doubt
                         -> recorded beside the next entry of the flow,
                            or by the activation that knows of the stop
    in doubt             -> ran again and completed or failed: known
                         -> cut in a later run: still in doubt, for nobody knows what the earlier run did

What must always hold: a step that may have taken effect, and whose end nobody recorded, is in doubt until it
completes or fails in another run. So a flow that is stopped meanwhile names it as unknown.

The server forgets the stalls of a flow with its next entry, because it got on. So a doubt must be recorded
together with that entry, and not before: an entry of its own would hide that the flow makes no progress.
"""

from __future__ import annotations

from typing import Any, cast

from workflows.definition.each import EachStep
from workflows.distributed.worker_runtime import Flow
from workflows.records.entries import Entry
from workflows.records.graph_history import ENDED, GraphHistory, StepHistory
from workflows.records.ids import item_name


def find_doubts(flow: Flow, history: GraphHistory, *, created_ms: int, now_ms: int) -> dict[str, Entry]:
    """Return the steps that may have run when the worker died, and the entries that say so; without those
    that have one.
    """
    found: dict[str, Entry] = {}
    for step, needs in flow.workflow.plan.without(flow.message.kept).nodes:
        known = history.steps.get(step)
        definition = flow.workflow.steps[step]
        is_apart = flow.workflow.runs_apart(definition) or step in history.open_children
        if is_apart or definition.pause is not None:  # it waits; what it waits for has a record of its own
            continue
        if definition.is_each:
            if is_ready(history, needs):  # else its list is kept from an earlier run
                found.update(_doubtful_items(cast("EachStep[Any, Any]", definition), history, now_ms))
            continue
        if _may_have_run(known, now_ms) and is_ready(history, needs):
            ends = [_end_of(history.steps[need].last) for need in needs if need in history.steps]
            attempts = known.last.attempts if known is not None else 0
            begun = max(ends, default=created_ms)  # at the earliest; and it ended by now
            found[step] = Entry(
                kind="cut",
                place=step,
                attempts=attempts,
                started_ms=begun,
                took_ms=max(now_ms - begun, 1),
                is_lost=True,
            )
    return found


def _doubtful_items(step: EachStep[Any, Any], history: GraphHistory, now_ms: int) -> dict[str, Entry]:
    """Return the items of a step that may have run: the first ones without an end, for items begin in order.

    The worker that died may have had another `at_once` than this one.
    """
    begun = history.lists.get(step.name)
    if begun is None or history.steps[step.name].state in ENDED:
        return {}
    names = [item_name(step.name, index) for index in range(history.count_items(step.name)[1])]
    steps = history.steps
    open_ones = [name for name in names if name not in steps or steps[name].state not in ENDED]
    found: dict[str, Entry] = {}
    for name in open_ones[: max(step.at_once, begun.at_once)]:
        known = steps.get(name)
        if _may_have_run(known, now_ms):
            found[name] = Entry(
                kind="cut",
                place=name,
                attempts=known.last.attempts if known is not None else 0,
                started_ms=_end_of(begun),
                took_ms=max(now_ms - _end_of(begun), 1),
                is_lost=True,
            )
    return found


def _may_have_run(known: StepHistory | None, now_ms: int) -> bool:
    if known is None:
        return True
    if known.state == "delayed":
        return known.last.due_ms <= now_ms
    return known.state not in (*ENDED, "unknown")


def is_ready(history: GraphHistory, needs: tuple[str, ...]) -> bool:
    """Tell whether all that a step waits for has ended, so that it may begin."""
    return all(need in history.steps and history.steps[need].last.kind == "step" for need in needs)


def _end_of(entry: Entry) -> int:
    return entry.started_ms + entry.took_ms
