"""What the script that draws a graph is given: short texts, made here, and links. It lays them out and knows
nothing of flows.

What must always hold: a name is shown as `visible` shows it, and is a text in the drawing, whatever it holds;
the whole fits into an attribute of the page.
"""

from __future__ import annotations

import msgspec

from eventbus.dashboard.desk.flows.graph import GraphView, NodeLine
from eventbus.dashboard.links import Links
from eventbus.dashboard.pages.visible import LONGEST, visible

_LONGEST_NAME = 28
_PLACES = {"error_place": "error place", "end": "end"}
"""What is said of places of a state machine at which it does not stand."""


def graph_data(graph: GraphView, links: Links) -> str:
    """Return a graph as JSON: nodes as name, kind, state, second line, title, link; edges as places, label,
    class. Empty if there is nothing to draw.

    Without edges there is nothing to draw either, unless there is one node.
    """
    if not graph.nodes or (not graph.has_edges and len(graph.nodes) > 1):
        return ""
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    nodes = [
        [
            _short(str(visible(node.name))),
            node.kind,
            node.state,
            _second_line(node),
            _title(node),
            links("flows", node.flow_id) if node.flow_id else "",
        ]
        for node in graph.nodes
    ]
    edges = [
        [
            places[edge.source],
            places[edge.target],
            _short(str(visible(edge.label))) if edge.label else "",
            "error" if edge.on_error else "",
        ]
        for edge in graph.edges
    ]
    text = msgspec.json.encode({"nodes": nodes, "edges": edges}).decode()
    return text if len(text) <= LONGEST else ""


def _second_line(node: NodeLine) -> str:
    if node.states:
        return _short(", ".join(f"{count} {_word(state)}" for state, count in node.states.items()))
    told = _word(node.state or ("start" if node.is_start else _PLACES.get(node.kind, "")))
    if not node.when:
        return told
    return _short(str(visible(f"{told}, if {node.when}" if told else f"if {node.when}")))


def _title(node: NodeLine) -> str:
    about = f", {'workflow' if node.kind == 'flow' else 'signal'} {node.about}" if node.about else ""
    if node.when and node.states:
        about += f", if {node.when}"
    counts = ", ".join(f"{count} {_word(state)}" for state, count in node.states.items())
    told = counts or _second_line(node) or _word(node.kind)
    return str(visible(f"{node.name}{about}: {told}"))[:300]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def _word(state: str) -> str:
    return state.replace("_", " ")
