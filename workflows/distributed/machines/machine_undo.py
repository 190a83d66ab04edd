"""What is to be undone of a state machine: of one that stopped, or of one that completed inside a flow that
stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventbus import StoreCorrupt
from workflows.distributed.functions.flow_around import FlowAround
from workflows.distributed.undo_plan import UndoPlan
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.machines.definition import MachineDefinition
from workflows.machines.snapshot import (
    STATE,
    Awaited,
    document_name,
    obligations_in,
    read_children,
    read_snapshot,
)
from workflows.machines.undo import MachineUndos, doubts_in
from workflows.records.records import FlowMessage

__all__ = ["add_failed_children", "plan_machine"]


async def plan_machine(
    runtime: WorkerRuntime, definition: MachineDefinition, flow_id: str, message: FlowMessage, prefix: str
) -> UndoPlan:
    """Return the plan of a machine that completed inside another flow; `prefix` begins the paths of its
    moves.

    Raises UnknownTask for a rollback that this release does not have, and StoreError.
    """
    live = await runtime.ask(runtime.jobs.lives(flow_id))
    snapshot = read_snapshot(flow_id, live)
    if snapshot is None:
        raise StoreCorrupt(f"the snapshot of flow {flow_id} is gone")

    async def load(name: str) -> str | None:
        return await runtime.jobs.live(flow_id, document_name(name))

    around = FlowAround(runtime, definition, flow_id, message).make(str(message.run))
    undos = MachineUndos(definition, around, snapshot, live.get(STATE, "null"), load)
    plan = UndoPlan()
    plan.undos += undos.list_open(obligations_in(flow_id, live), prefix)
    plan.inherited += doubts_in(flow_id, live, prefix)
    await add_failed_children(runtime, flow_id, read_children(flow_id, live), plan, prefix)
    return plan


async def add_failed_children(
    runtime: WorkerRuntime, flow_id: str, awaited: Sequence[Awaited], plan: UndoPlan, prefix: str = ""
) -> None:
    """Add to a plan the rollbacks that failed in the children of a machine which did not complete. Raises
    StoreError.
    """
    ends = await runtime.ask(runtime.jobs.outcomes([child.id for child in awaited])) if awaited else []
    for end in ends:
        if end.state in ("failed", "cancelled"):
            path = prefix + end.job.removeprefix(f"{flow_id}/")
            await runtime.add_nested(runtime, end.job, end.state, end.text or "", plan, path)
