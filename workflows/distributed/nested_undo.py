"""What is to be undone of a flow that another flow started: of a sub-workflow, or of a child, whatever kind
either is of.

What must always hold: what a completed inner flow did is undone as if the outer one had done it, at the place
of its end; one that did not complete has undone its own, and says in its error what it could not undo.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import TreePage, describe, note_body_around
from workflows.distributed.activation import read_journal
from workflows.distributed.functions.child_undo import plan_durable
from workflows.distributed.machines.machine_undo import plan_machine
from workflows.distributed.undo.graph_undo import read_undo_plan
from workflows.distributed.undo_plan import UndoPlan, UnknownHere
from workflows.distributed.worker_runtime import Flow, WorkerRuntime
from workflows.functions.rollbacks import UnknownTask
from workflows.records.checkpoints import GRAPH
from workflows.records.graph_history import read_graph
from workflows.records.ids import workflow_of
from workflows.records.records import FlowFailure, FlowMessage, read_message_of

__all__ = ["add_nested"]

_decode_failure = msgspec.json.Decoder(FlowFailure).decode


async def add_nested(
    runtime: WorkerRuntime, flow_id: str, state: str, text: str, found: UndoPlan, path: str
) -> None:
    """Add the flow that the step or the call at `path` ran, which ended in `state` with the error `text`.

    Raises UnknownHere, StoreError.
    """
    if state != "completed":
        _add_failed(text, found, path)
        return
    page = await runtime.jobs.look(flow_id, limit=0)
    try:
        body = page.root.get("body", "")
        note_body_around(path, body)
        message = read_message_of(flow_id, body)
        inner = await _plan(runtime, flow_id, message, page, f"{path}/")
    except StoreCorrupt as error:
        found.inherited.append((path, describe(error, attempts=0)))
        return
    except UnknownTask as error:
        raise UnknownHere(str(error)) from error
    found.undos += inner.undos
    found.inherited += inner.inherited
    found.is_doubtful = found.is_doubtful or inner.is_doubtful


async def _plan(
    runtime: WorkerRuntime, flow_id: str, message: FlowMessage, page: TreePage, prefix: str
) -> UndoPlan:
    """Return the plan of a completed flow. Raises UnknownHere, UnknownTask, StoreError."""
    name = workflow_of(flow_id)
    if message.machine:
        machine = runtime.registry.machine(name, message.version or None)
        if machine is None:
            raise UnknownHere(f"version {message.version} of state machine {name}")
        return await plan_machine(runtime, machine, flow_id, message, prefix)
    if message.durable:
        durable = runtime.registry.durable(name, message.version or None)
        if durable is None:
            raise UnknownHere(f"version {message.version} of durable function {name}")
        return await plan_durable(runtime, durable, flow_id, message, page.root, prefix)
    return await _plan_graph(runtime, flow_id, message, page.root, page.saved, prefix)


async def _plan_graph(
    runtime: WorkerRuntime,
    flow_id: str,
    message: FlowMessage,
    root: Mapping[str, str],
    saved: Mapping[str, str],
    prefix: str,
) -> UndoPlan:
    name, history = workflow_of(flow_id), read_graph(await read_journal(runtime.jobs, flow_id, root), message)
    workflow = runtime.find(name, message.version or saved.get(GRAPH, "") or history.version)
    if workflow is None:
        raise UnknownHere(f"workflow {name} in version {message.version}")
    plan = await read_undo_plan(runtime, Flow(runtime, workflow, flow_id, message), history, prefix)
    plan.is_doubtful = plan.is_doubtful or "damaged" in root
    return plan


def _add_failed(text: str, found: UndoPlan, path: str) -> None:
    failure = _read_failure(text)
    if failure is None:
        found.is_doubtful = True
        return
    found.is_doubtful = found.is_doubtful or failure.rollback == "incomplete" or failure.stalls > 0
    found.inherited += [(f"{path}/{name}", bytes(raw).decode()) for name, raw in failure.rollback_errors]


def _read_failure(text: str) -> FlowFailure | None:
    try:
        return msgspec.json.decode(text, type=_Failure).whole(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None


class _Failure(msgspec.Struct):
    """The record of any error; only the record of a flow has all fields of a FlowFailure."""

    type: str = ""
    message: str = ""
    stalls: int = 0

    def whole(self, text: str) -> FlowFailure:
        try:
            return _decode_failure(text)
        except msgspec.MsgspecError:
            return FlowFailure(
                type=self.type, message=self.message, stalls=self.stalls, flow_id="", workflow=""
            )
