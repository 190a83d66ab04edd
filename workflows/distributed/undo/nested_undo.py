"""The undo plan of a stopped flow with the flows of its sub-workflows, whichever way each of them ran.

What must always hold: the steps of a completed sub-workflow are undone as if they were steps of the outer flow, at its
place; a sub-workflow that did not complete has undone its own, and says in its error what it could not undo.
"""

from __future__ import annotations

import msgspec

from eventbus import StoreCorrupt
from eventbus.lowlevel import describe
from workflows.distributed.activation import read_journal
from workflows.distributed.undo.local_undo import read_local_plan
from workflows.distributed.undo.spread_undo import read_spread_plan
from workflows.distributed.undo.undo_plan import UndoPlan, UnknownHere
from workflows.distributed.worker_runtime import Flow, WorkerRuntime
from workflows.records.checkpoints import GRAPH
from workflows.records.graph_history import GraphHistory, read_graph
from workflows.records.ids import workflow_of
from workflows.records.records import FlowFailure, read_message_of

__all__ = ["add_nested", "read_undo_plan"]

_decode_failure = msgspec.json.Decoder(FlowFailure).decode


async def read_undo_plan(
    runtime: WorkerRuntime, flow: Flow, history: GraphHistory, prefix: str = ""
) -> UndoPlan:
    """Return the undo plan of a flow; `prefix` begins the paths of its steps. Raises UnknownHere, StoreError."""
    if history.is_local:
        return await read_local_plan(runtime, flow, history, prefix, nested=add_nested)
    return await read_spread_plan(runtime, flow, prefix, nested=add_nested)


async def add_nested(
    runtime: WorkerRuntime, flow_id: str, state: str, text: str, found: UndoPlan, path: str
) -> None:
    """Add the flow of the sub-workflow at `path`, which ended in `state` with the error `text`.

    Raises UnknownHere, StoreError.
    """
    if state != "completed":
        failure = _read_failure(text)
        if failure is None:
            found.is_doubtful = True
        else:
            found.is_doubtful = found.is_doubtful or failure.rollback == "incomplete" or failure.stalls > 0
            found.inherited += [
                (f"{path}/{name}", bytes(raw).decode()) for name, raw in failure.rollback_errors
            ]
        return
    page = await runtime.jobs.look(flow_id, limit=0)
    try:
        message = read_message_of(flow_id, page.root.get("body", ""))
        history = read_graph(await read_journal(runtime.jobs, flow_id, page.root), message)
    except StoreCorrupt as error:
        found.inherited.append((path, describe(error, attempts=0)))
        return
    name = workflow_of(flow_id)
    workflow = runtime.find(name, message.version or page.saved.get(GRAPH, "") or history.version)
    if workflow is None:
        raise UnknownHere(f"workflow {name} in version {message.version}")
    flow = Flow(runtime, workflow, flow_id, message)
    inner = await read_undo_plan(runtime, flow, history, f"{path}/")
    found.undos += inner.undos
    found.inherited += inner.inherited
    found.is_doubtful = found.is_doubtful or inner.is_doubtful or "damaged" in page.root


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
