"""The undo plan of a stopped local flow, from its journal.

What must always hold: every step that completed is listed once if it has a rollback, the last one first. A
step that began and did not complete is listed only if it has `rollback_on_failure`. A step that was
interrupted by the end of its worker is in doubt: it may have taken effect.

Which steps are in doubt (`doubts`) is decided once, by the first activation that knows of the stop, and
recorded (`stop`). Later stalls are those of the rollbacks. The same activation records the ends of children
that nobody has recorded, and the step that made the flow fail: afterwards nobody could tell it from a child
that failed without any effect on the flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import FINAL_STATES, TreeMember, describe
from workflows.definition.context import StepContext
from workflows.distributed.activation import Activation
from workflows.distributed.undo.doubts import find_doubts, is_ready
from workflows.distributed.undo.spread_undo import kept_in
from workflows.distributed.worker_runtime import Flow, WorkerRuntime
from workflows.errors import COMPLETED
from workflows.execution.apart_steps import record_of_child
from workflows.execution.graph_entries import OWES_UNDO, find_lost_undo, restore_graph
from workflows.execution.graph_state import GraphState
from workflows.execution.rollback import UndoPlan, UnknownHere, plan_graph
from workflows.execution.step_run import StepRun
from workflows.records.entries import Entry
from workflows.records.graph_history import GraphHistory, StepHistory
from workflows.records.ids import split_item
from workflows.records.indeterminate import is_unknown
from workflows.records.records import stalls_in

_OPEN = ("delayed", "sleeping")

_PAGE_BYTES = 8 << 20  # bytes of results that one call reads


async def note_stop(
    activation: Activation, flow: Flow, history: GraphHistory, root: Mapping[str, str]
) -> None:
    """Record which steps are in doubt, and which one made the flow fail, unless an earlier activation has.

    Add what is recorded to `history`. `root` are the fields of the flow's root job. Raises LeaseLost.
    """
    if history.is_stopped:
        return
    created_ms, now_ms = activation.job.created_ms, activation.clock.now_ms
    has_lost = int(root.get("lost") or 0) > 0  # leases, between the last entry and the stop
    doubts = find_doubts(flow, history, created_ms=created_ms, now_ms=now_ms) if has_lost else {}
    stopper = _find_stopper(flow, history, doubts, root.get("text", ""))
    waited = [each for name, each in history.steps.items() if each.state in _OPEN and name not in doubts]
    entries = [*map(_cut, waited), *doubts.values(), *await _read_children(flow, history, now_ms)]
    begins = [] if history.is_begun else [flow.first_entry()]
    stop = Entry(kind="stop", run=flow.message.run, name=stopper if activation.job.stop == "failed" else "")
    await activation.append([*begins, *entries, stop])
    for entry in entries:
        history.note(entry)
    history.is_stopped, history.stopper = True, stop.name


def _find_stopper(flow: Flow, history: GraphHistory, doubts: Mapping[str, Entry], text: str) -> str:
    """Return the step that made the flow fail with the error `text`, before ends of children are read.

    That is the one whose failure was recorded first. If workers died instead, it is the first step that they
    may have run, or else, because they died between steps, the first one that could go on.
    """
    if history.failed is not None:
        return history.failed.step
    if not stalls_in(text):
        return COMPLETED
    cut = [name for name in history.order if history.steps[name].last.kind == "cut" and name not in doubts]
    in_doubt = [name for name in cut if history.steps[name].last.is_lost]
    plan = flow.workflow.plan.without(flow.message.kept)
    is_over = [name for name, step in history.steps.items() if step.last.kind in ("step", "failed")]
    open_ones = [name for name, needs in plan.nodes if name not in is_over and is_ready(history, needs)]
    return next(iter([*in_doubt, *doubts, *open_ones]), COMPLETED)


def _cut(step: StepHistory) -> Entry:
    """Return the entry about the end of a step that waited: for its next attempt, a time or a signal."""
    last = step.last
    return Entry(
        kind="cut",
        place=step.step,
        attempts=last.attempts,
        started_ms=last.started_ms,
        took_ms=last.took_ms,
        is_lost=last.is_lost,
    )


async def read_local_plan(flow: Flow, history: GraphHistory, prefix: str = "") -> UndoPlan:
    """Return the undo plan of a flow; `prefix` begins the paths of its steps. Raises UnknownHere,
    StoreError.
    """
    for name in history.order:
        if split_item(name)[0] not in flow.workflow.steps:
            raise UnknownHere(f"step {name} of workflow {flow.workflow.name}")
    if lost := find_lost_undo(history, flow.workflow):
        raise UnknownHere(f"the rollback of step {lost} of workflow {flow.workflow.name}")
    graph = restore_graph(flow.workflow, history, flow.message.kept, 0)
    runs: list[StepRun] = []
    for name in reversed(history.order):
        known, run = history.steps[name], graph.find(name)
        if run is None:  # an item: their list is recorded before
            raise StoreCorrupt(f"the journal of flow {flow.flow_id} has no list with {name}")
        run.state, run.child, run.failure = known.state, known.last.child, run.failure or known.last.failure
        runs.append(run)
    context = partial(_context, flow, graph)
    return await plan_graph(runs, flow.workflow, graph.records, context, flow.runtime.add_inner, prefix)


async def _read_children(flow: Flow, history: GraphHistory, now_ms: int) -> list[Entry]:
    """Return entries about the ends of children that nobody has recorded, in the order of these ends."""
    begun = {entry.child: entry for entry in history.open_children.values()}
    if not begun:
        return []
    runtime, found, first = flow.runtime, list[tuple[int, Entry]](), 0
    while True:
        page = await runtime.ask(runtime.jobs.look(flow.flow_id, first=first, max_bytes=_PAGE_BYTES))
        texts = await _read_texts(runtime, [each for each in page.members if each.id in begun])
        for member in page.members:
            if member.id in texts:
                entry = _end_of(flow, member, begun[member.id], texts[member.id], now_ms)
                found.append((member.ended, entry))
        first += len(page.members)
        if first >= page.total or not page.members:
            return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


async def _read_texts(runtime: WorkerRuntime, members: Sequence[TreeMember]) -> dict[str, str]:
    """Return the results or errors of members that have begun and ended, by id."""
    ids = [each.id for each in members if each.claimed and each.state in FINAL_STATES]
    outcomes = await runtime.ask(runtime.jobs.outcomes(ids)) if ids else []
    return {each.job: each.text or "" for each in outcomes}


def _end_of(flow: Flow, member: TreeMember, begun: Entry, text: str, now_ms: int) -> Entry:
    """Return the entry about the end of a child."""
    took = max(now_ms - begun.started_ms, 0)  # it ends with its record, as all steps here do
    entry = Entry(kind="step", place=begun.place, child=member.id, started_ms=begun.started_ms, took_ms=took)
    step = flow.workflow.steps[split_item(begun.place)[0]]
    is_job = step.workflow is None
    kept = kept_in(text) if is_job and member.state == "cancelled" else ""
    if member.state == "completed" or kept:
        try:
            record = record_of_child(step, begun, kept or text)
        except StoreCorrupt as error:
            entry.kind, entry.is_lost = "failed", True
            entry.error = msgspec.Raw(describe(error, attempts=0).encode())
        else:
            entry.result, entry.skipped, entry.traceparent = record.result, record.skipped, record.traceparent
            entry.undo = OWES_UNDO if record.has_undo else ""
            if record.failure:
                entry.error, entry.is_lost = record.error, stalls_in(record.failure) > 0
        return entry
    entry.kind = "failed" if member.state == "failed" else "cut"
    entry.is_lost = is_job and is_unknown(member.state, member.stalls, text)
    entry.attempts = member.attempts
    entry.error = msgspec.Raw(text.encode()) if text else entry.error
    return entry


def _context(flow: Flow, graph: GraphState, step: str, attempt: int) -> StepContext[object]:
    return flow.context(
        step,
        job_id=flow.job_of(step),
        attempt=attempt,
        traceparent=flow.message.traceparent,
        records=graph.records,
        reach=flow.workflow.steps,
    )
