"""The undo plan of a stopped flow of steps, whichever way it ran."""

from __future__ import annotations

from workflows.distributed.undo.local_undo import read_local_plan
from workflows.distributed.undo.spread_undo import read_spread_plan
from workflows.distributed.undo_plan import UndoPlan
from workflows.distributed.worker_runtime import Flow, WorkerRuntime
from workflows.records.graph_history import GraphHistory

__all__ = ["read_undo_plan"]


async def read_undo_plan(
    runtime: WorkerRuntime, flow: Flow, history: GraphHistory, prefix: str = ""
) -> UndoPlan:
    """Return the undo plan of a flow; `prefix` begins the paths of its steps. Raises UnknownHere,
    StoreError.
    """
    if history.is_local:
        return await read_local_plan(runtime, flow, history, prefix)
    return await read_spread_plan(runtime, flow, prefix)
