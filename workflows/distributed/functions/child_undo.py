"""The rollbacks of a stopped flow of a durable function, with those of the flows that it started and that completed.

What must always hold: a child that completed is undone where its end stands among the steps of its flow, the newest first; a
child that did not complete has undone itself, and what it could not undo is told by its flow, too. The ends of all children
are recorded before the rollbacks begin, so that each activation has the same list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import describe
from workflows.distributed.activation import read_journal
from workflows.distributed.functions.flow_around import FlowAround
from workflows.distributed.functions.flow_recorder import FlowRecorder
from workflows.distributed.undo.nested_undo import read_undo_plan
from workflows.distributed.undo.undo_plan import UnknownHere
from workflows.distributed.worker_runtime import Flow, WorkerRuntime
from workflows.execution.rollback import RollbackResult, Undo
from workflows.functions.calls.child_call import end_entry
from workflows.functions.calls.history import History, kept_entries
from workflows.functions.definition import Durable
from workflows.functions.rollbacks import TaskUndo, UnknownTask, doubts_in, inherited_in, undo_of
from workflows.functions.surroundings import Surroundings
from workflows.records.checkpoints import GRAPH
from workflows.records.entries import Entry
from workflows.records.graph_history import read_graph
from workflows.records.ids import is_nested, workflow_of
from workflows.records.records import read_message_of

__all__ = ["AnyUndo", "ChildPlan", "note_ends", "plan_undo", "traceparent_of_undo"]

AnyUndo: TypeAlias = TaskUndo | Undo


class ChildPlan(msgspec.Struct):
    """The rollbacks to run, the newest first; those of children that failed for good; and whether steps are in doubt."""

    undos: list[AnyUndo]
    inherited: list[RollbackResult]
    is_doubtful: bool = False


async def note_ends(runtime: WorkerRuntime, flow_id: str, recorder: FlowRecorder) -> None:
    """Record the ends of the children that nobody has recorded. Raises LeaseLost, ServerAway."""
    open_ones = [*History(kept_entries(recorder.entries).entries).open_children.values()]
    if not open_ones:
        return
    ends = await runtime.ask(runtime.jobs.outcomes([entry.child for entry in open_ones]))
    await recorder.append(
        [
            end_entry(entry, end, flow_id=flow_id, now_ms=recorder.now_ms, is_wanted=False)
            for entry, end in zip(open_ones, ends, strict=True)
        ]
    )


async def plan_undo(
    runtime: WorkerRuntime,
    durable: Durable[Any, Any],
    entries: Sequence[Entry],
    around: Surroundings,
    prefix: str = "",
) -> ChildPlan:
    """Return the plan of a flow; `prefix` begins the paths of its steps. Raises UnknownTask."""
    plan = ChildPlan([], *inherited_in(entries, around.flow_id, prefix))
    for entry in reversed(entries):
        path = f"{prefix}{entry.name}@{entry.place}"
        if entry.kind == "step" and entry.child and is_nested(entry.child, around.flow_id):
            await _add_child(runtime, entry, plan, f"{path}/")
        elif (undo := undo_of(durable, entry, around, path)) is not None:
            plan.undos.append(undo)
    return plan


async def _add_child(runtime: WorkerRuntime, entry: Entry, plan: ChildPlan, prefix: str) -> None:
    try:
        inner = await _plan_flow(runtime, entry.child, prefix)
    except UnknownHere as error:
        raise UnknownTask(str(error)) from error
    except StoreCorrupt as error:
        plan.inherited.append((prefix.rstrip("/"), describe(error, attempts=0)))
        return
    plan.undos += inner.undos
    plan.inherited += inner.inherited
    plan.is_doubtful = plan.is_doubtful or inner.is_doubtful


async def _plan_flow(runtime: WorkerRuntime, flow_id: str, prefix: str) -> ChildPlan:
    page = await runtime.jobs.look(flow_id, limit=0)
    message, name = read_message_of(flow_id, page.root.get("body", "")), workflow_of(flow_id)
    entries = await read_journal(runtime.jobs, flow_id, page.root)
    if message.durable:
        durable = runtime.registry.durable(name, message.version or None)
        if durable is None:
            raise UnknownTask(f"version {message.version} of durable function {name}")
        kept = kept_entries(entries)
        run = f"{message.run}.{kept.again}" if kept.again else str(message.run)
        around = FlowAround(runtime, durable, flow_id, message).make(run)
        plan = await plan_undo(runtime, durable, kept.entries, around, prefix)
        plan.inherited += doubts_in(kept.entries, prefix)
        return plan
    history = read_graph(entries, message)
    workflow = runtime.find(name, message.version or page.saved.get(GRAPH, "") or history.version)
    if workflow is None:
        raise UnknownTask(f"version {message.version} of workflow {name}")
    flow = Flow(runtime, workflow, flow_id, message)
    found = await read_undo_plan(runtime, flow, history, prefix)
    return ChildPlan([*found.undos], [*found.inherited], found.is_doubtful or "damaged" in page.root)


def traceparent_of_undo(undo: AnyUndo) -> str:
    """Return the traceparent of the step that is undone; empty if it has none."""
    if isinstance(undo, TaskUndo):
        return undo.traceparent
    return "" if undo.record is None else undo.record.traceparent
