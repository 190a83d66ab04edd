"""What is to be undone of a flow that another flow started: of a sub-workflow, or of a child, whatever kind
either is of.

What must always hold: what a completed inner flow did is undone as if the outer one had done it, at the place
of its end; one that did not complete has undone its own, and says in its error what it could not undo.
"""

from __future__ import annotations

from functools import partial

from eventbus import StoreCorrupt
from eventbus.lowlevel import TreePage, describe, note_body_around
from workflows.distributed.activation import read_journal
from workflows.distributed.functions.flow_around import FlowAround
from workflows.distributed.machines.machine_flow import load_document, read_ends
from workflows.distributed.undo.local_undo import read_local_plan
from workflows.distributed.undo.spread_undo import read_spread_plan
from workflows.distributed.worker_runtime import Flow, WorkerRuntime
from workflows.execution.rollback import UndoPlan, UnknownHere
from workflows.functions.calls.kept import kept_entries
from workflows.functions.rollbacks import plan_function
from workflows.machines.snapshot import Snapshot
from workflows.machines.standing import Standing
from workflows.machines.undo import plan_machine
from workflows.records.checkpoints import GRAPH
from workflows.records.graph_history import read_graph
from workflows.records.ids import workflow_of
from workflows.records.records import FlowMessage, read_message_of


async def add_nested(
    runtime: WorkerRuntime, plan: UndoPlan, flow_id: str, state: str, text: str, path: str
) -> None:
    """Add to a plan the flow that the step or the call at `path` ran, which ended in `state` with the error
    `text`. Raises UnknownHere, StoreError.
    """
    if state != "completed":
        plan.inherit(path, text)
        return
    page = await runtime.jobs.look(flow_id, limit=0)
    try:
        body = page.root.get("body", "")
        note_body_around(path, body)
        inner = await _plan(runtime, flow_id, read_message_of(flow_id, body), page, f"{path}/")
    except StoreCorrupt as error:
        plan.inherited.append((path, describe(error, attempts=0)))
        return
    plan.add(inner)


async def _plan(
    runtime: WorkerRuntime, flow_id: str, message: FlowMessage, page: TreePage, prefix: str
) -> UndoPlan:
    """Return the plan of a completed flow. Raises UnknownHere, StoreError."""
    if message.machine:
        return await _plan_machine(runtime, flow_id, message, prefix)
    if message.durable:
        return await _plan_function(runtime, flow_id, message, page, prefix)
    return await _plan_graph(runtime, flow_id, message, page, prefix)


async def _plan_machine(runtime: WorkerRuntime, flow_id: str, message: FlowMessage, prefix: str) -> UndoPlan:
    name = workflow_of(flow_id)
    machine = runtime.registry.machine(name, message.version or None)
    if machine is None:
        raise UnknownHere(f"version {message.version} of state machine {name}")
    live = await runtime.ask(runtime.jobs.lives(flow_id))
    standing = Standing(flow_id, live, Snapshot(machine.start), "null")
    if not standing.is_recorded:
        raise StoreCorrupt(f"the snapshot of flow {flow_id} is gone")
    around = FlowAround(runtime, machine, flow_id, message).make(str(message.run))
    load = partial(load_document, runtime.jobs, flow_id)
    ends = await read_ends(runtime, standing)
    return await plan_machine(machine, around, standing, live, load, ends, runtime.add_inner, prefix)


async def _plan_function(
    runtime: WorkerRuntime, flow_id: str, message: FlowMessage, page: TreePage, prefix: str
) -> UndoPlan:
    name = workflow_of(flow_id)
    durable = runtime.registry.durable(name, message.version or None)
    if durable is None:
        raise UnknownHere(f"version {message.version} of durable function {name}")
    kept = kept_entries(await read_journal(runtime.jobs, flow_id, page.root))
    around = FlowAround(runtime, durable, flow_id, message).make(kept.run_of(message.run))
    return await plan_function(durable, kept.entries, around, runtime.add_inner, prefix)


async def _plan_graph(
    runtime: WorkerRuntime, flow_id: str, message: FlowMessage, page: TreePage, prefix: str
) -> UndoPlan:
    name, root = workflow_of(flow_id), page.root
    history = read_graph(await read_journal(runtime.jobs, flow_id, root), message)
    workflow = runtime.find(name, message.version or page.saved.get(GRAPH, "") or history.version)
    if workflow is None:
        raise UnknownHere(f"workflow {name} in version {message.version}")
    flow = Flow(runtime, workflow, flow_id, message)
    if history.is_local:
        plan = await read_local_plan(flow, history, prefix)
    else:
        plan = await read_spread_plan(flow, prefix)
    plan.is_doubtful = plan.is_doubtful or "damaged" in root  # some completed steps may be missing
    return plan
