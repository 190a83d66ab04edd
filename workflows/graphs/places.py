"""The graph of a state machine: its places as nodes, and its transitions as edges, with what makes them fire.

    approve (trigger, guard, priority 1)        write, on error

The graph of a flow has the state of the flow at the place where it stands. A flow belongs to no release, so
it may stand at a place that the definition at hand does not have: that one, and the moves there that its
history still has, are drawn too.

What must always hold: the flow stands at one node, and at no other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from workflows.graphs.graph import Graph, GraphEdge, GraphNode
from workflows.machines.definition import Edge, MachineDefinition
from workflows.machines.transition import END
from workflows.records.report import FlowReport, MachineReport

_MARKS = {"waiting": "trigger", "following": "children"}
_UNITS = {"d": 86_400, "h": 3600, "min": 60}


def graph_of_machine(machine: MachineDefinition) -> Graph:
    """Return the graph of a definition: the start first, and END last if something leads there."""
    edges = machine.edges
    errors = {edge.target for edge in edges if edge.kind == "error"}
    places = [machine.start, *(place for place in machine.places if place != machine.start)]
    nodes = [
        GraphNode(
            name=place, kind="error_place" if place in errors else "place", is_start=place == machine.start
        )
        for place in places
    ]
    if any(edge.target == END for edge in edges):
        nodes.append(GraphNode(name=END, kind="end"))
    return Graph(
        workflow=machine.name,
        version=machine.version,
        nodes=nodes,
        edges=[GraphEdge(edge.source, edge.target, _label(edge), edge.kind == "error") for edge in edges],
    )


def graph_of_standing(report: FlowReport, machine: MachineReport, definition: Graph | None) -> Graph:
    """Return the graph of a flow that stands somewhere; `definition` is that of its class, None if nobody
    knows it.
    """
    known = [] if definition is None else definition.nodes
    nodes = [*known, *_unknown(machine, {node.name for node in known})]
    edges = [] if definition is None else definition.edges
    names = {(edge.source, edge.target) for edge in edges}
    moved = [(move.source, move.target, move.transition) for move in machine.moves if move.kind == "move"]
    drawn = {node.name for node in nodes}
    edges = [
        *edges,
        *dict.fromkeys(
            GraphEdge(source, target, transition or "by hand")
            for source, target, transition in moved
            if (source, target) not in names and {source, target} <= drawn and source != target
        ),
    ]
    return Graph(
        workflow=report.workflow,
        version=report.version,
        nodes=[
            msgspec.structs.replace(node, state=_state(report)) if node.name == machine.place else node
            for node in nodes
        ],
        edges=edges,
        flow_id=report.flow_id,
        state=report.state,
        parts=len(nodes),
    )


def _label(edge: Edge) -> str:
    if edge.kind == "error":
        return f"{edge.transition}, on error"
    marks = [
        *([_MARKS[edge.kind]] if edge.kind in _MARKS else []),
        *([f"after {_spoken(edge.delay)}"] if edge.delay else []),
        *(["guard"] if edge.guarded else []),
        *([f"priority {edge.priority}"] if edge.priority else []),
    ]
    return f"{edge.transition} ({', '.join(marks)})" if marks else edge.transition


def _spoken(seconds: float) -> str:
    """Return a delay in the largest unit that it has a whole number of."""
    for name, length in _UNITS.items():
        if seconds % length == 0:
            return f"{seconds / length:g} {name}"
    return f"{seconds:g} s"


def _unknown(machine: MachineReport, known: set[str]) -> Sequence[GraphNode]:
    """Return nodes for the places of a flow that the definition does not have."""
    places = [place for move in machine.moves for place in (move.source, move.target)]
    found = dict.fromkeys(place for place in (*places, machine.place) if place and place not in known)
    return [GraphNode(name=place, kind="end" if place == END else "place") for place in found]


def _state(report: FlowReport) -> str:
    """Return the state of the place where a flow stands: that of an ended flow; `failed` also if it stands
    there with an error.
    """
    if report.state in ("completed", "failed", "cancelled"):
        return report.state
    return "failed" if report.error else "stands_here"
