"""The graph of a flow: its parts as nodes with their states, and what follows what."""

from __future__ import annotations

import msgspec

from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.flows.flow import FoundFlow, find_flow, flows_of, may_see
from eventbus.dashboard.desk.rows import Read
from eventbus.dashboard.entry.gate import Caller


class GraphQuery(msgspec.Struct, frozen=True):
    """`fold`: more than twelve parts between the same neighbours are one node, and there are 300 nodes at
    most, or none.
    """

    fold: bool = True


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the flow. `kind` is step, each, flow, wait, sleep or emit; `about` is the workflow that it
    runs, or the signal that it waits for; `when` names the condition of a step that may be skipped. Of a
    state machine the parts are its places: `kind` is place, error_place or end, one `is_start`, and the place
    where the machine stands has a state. A node for several parts or items has their `count`, and how many
    are in each of `states`; its own `state` is the one that needs attention most. `flow_id` is the flow that
    it started.
    """

    name: str
    kind: str = "step"
    about: str = ""
    when: str = ""
    state: str = ""
    flow_id: str = ""
    count: int = 1
    states: dict[str, int] = {}
    is_start: bool = False


class EdgeLine(msgspec.Struct, frozen=True):
    """`target` follows `source`; the `label` names the transition of a state machine, and a failure leads
    there `on_error`.
    """

    source: str
    target: str
    label: str = ""
    on_error: bool = False


class GraphView(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of a flow. `parts` counts its nodes before some were folded; there are none if they are too
    many.

    `has_edges` is False where no worker has told what follows what. `signals` are those that its version
    declares, None where it takes any, or where nobody has told.
    """

    flow_id: str
    workflow: str
    version: str
    state: str
    nodes: list[NodeLine]
    edges: list[EdgeLine]
    has_edges: bool
    parts: int
    signals: list[str] | None = None


async def read_graph(desk: Desk, caller: Caller, path: dict[str, str], query: GraphQuery) -> GraphView:
    """Return the graph of a flow that the caller may see; flows that it may not see are no links."""
    return await view_graph(desk, caller, await find_flow(desk, caller, path["flow"]), query)


async def view_graph(desk: Desk, caller: Caller, found: FoundFlow, query: GraphQuery) -> GraphView:
    """Return the graph of a flow that was read, as the caller may see it."""
    flow_id = found.target.id
    graph = await flows_of(desk).graph(
        flow_id, tree=found.read, folded=query.fold, call_timeout=timeouts.READ
    )
    view = msgspec.convert(graph, GraphView, from_attributes=True)
    return msgspec.structs.replace(view, nodes=[_shown(desk, caller, each) for each in view.nodes])


def _shown(desk: Desk, caller: Caller, node: NodeLine) -> NodeLine:
    """Return a node without the flow that it started, and its workflow, if the caller may not see that."""
    if node.kind != "flow" and not node.flow_id:
        return node
    if may_see(desk, caller, node.flow_id, node.about):
        return node
    return msgspec.structs.replace(node, flow_id="", about="")


READS = (Read("/flows/{flow}/graph", "What follows what in a flow.", GraphView, read_graph, GraphQuery),)
