"""The rollbacks of a stopped flow of a durable function, with those of the flows that it started and that
completed.

What must always hold: a child that completed is undone where its end stands among the steps of its flow, the
newest first; a child that did not complete has undone itself, and what it could not undo is told by its flow,
too. The ends of all children are recorded before the rollbacks begin, so that each activation has the same
list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workflows.distributed.activation import read_journal
from workflows.distributed.functions.flow_around import FlowAround
from workflows.distributed.functions.flow_recorder import FlowRecorder
from workflows.distributed.undo_plan import UndoPlan, UnknownHere
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.execution.surroundings import Surroundings
from workflows.functions.calls.child_call import end_entry
from workflows.functions.calls.kept import kept_entries
from workflows.functions.definition import Durable
from workflows.functions.history import History
from workflows.functions.rollbacks import UnknownTask, doubts_in, inherited_in, undo_of
from workflows.records.entries import Entry
from workflows.records.ids import is_nested
from workflows.records.records import FlowMessage

__all__ = ["note_ends", "plan_durable", "plan_undo"]


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
) -> UndoPlan:
    """Return the plan of a flow; `prefix` begins the paths of its steps. Raises UnknownTask."""
    inherited, is_doubtful = inherited_in(entries, around.flow_id, prefix)
    plan = UndoPlan(inherited=inherited, is_doubtful=is_doubtful)
    for entry in reversed(entries):
        path = f"{prefix}{entry.name}@{entry.place}"
        if entry.kind == "step" and entry.child and is_nested(entry.child, around.flow_id):
            try:
                await runtime.add_nested(runtime, entry.child, "completed", "", plan, path)
            except UnknownHere as error:
                raise UnknownTask(str(error)) from error
        elif (undo := undo_of(durable, entry, around, path)) is not None:
            plan.undos.append(undo)
    return plan


async def plan_durable(
    runtime: WorkerRuntime,
    durable: Durable[Any, Any],
    flow_id: str,
    message: FlowMessage,
    root: Mapping[str, str],
    prefix: str,
) -> UndoPlan:
    """Return the plan of a flow that completed inside another one, whose root has these fields. Raises
    UnknownTask, StoreError.
    """
    kept = kept_entries(await read_journal(runtime.jobs, flow_id, root))
    around = FlowAround(runtime, durable, flow_id, message).make(kept.run_of(message.run))
    plan = await plan_undo(runtime, durable, kept.entries, around, prefix)
    plan.inherited += doubts_in(kept.entries, prefix)
    return plan
