"""Folding: what is too much to be looked at becomes one node, with how many of its parts are in each state.

    parts between the same neighbours whose names differ in a number alone, more than twelve of them, are one
    node if more than 300 nodes are left, more than twelve parts between the same neighbours are one node
    whatever their names if more than 300 are left then, parts whose names differ in a number alone are one
    node wherever they stand

What must always hold: no part is lost, so the counts of a folded graph add up to its `parts`; and a failed
part is seen, because the state of a node is the one that needs attention most.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from workflows.graphs.graph import Graph, GraphEdge, GraphNode

MOST_NODES = 300
"""How many nodes are drawn; a browser needs 0.3 s for them."""

_MOST_SIBLINGS = 12
_STATES = (
    "failed", "undo_failed", "damaged", "unknown", "active", "stands_here", "delayed", "sleeping", "waiting",
    "cancelled", "undone", "skipped", "completed",
)  # fmt: skip
_NUMBER = re.compile(r"([-_.]?\d+)?(@[\d.]+)?( \(\d+\))?$")


def fold(graph: Graph) -> Graph:
    """Return a graph of at most 300 nodes; one without any if it has more however it is folded."""
    folded = _fold_siblings(msgspec.structs.replace(graph, parts=len(graph.nodes)), are_alike=True)
    if len(folded.nodes) > MOST_NODES:
        folded = _fold_siblings(folded, are_alike=False)
    if len(folded.nodes) > MOST_NODES:
        folded = _fold_names(folded)
    if len(folded.nodes) > MOST_NODES:
        return msgspec.structs.replace(folded, nodes=[], edges=[])
    return folded


def worst_of(states: Mapping[str, int]) -> str:
    """Return the state of several parts: the one that needs attention most."""
    return min(states, key=lambda each: _STATES.index(each) if each in _STATES else len(_STATES), default="")


def _fold_siblings(graph: Graph, *, are_alike: bool) -> Graph:
    before: dict[str, set[str]] = {}
    after: dict[str, set[str]] = {}
    for edge in graph.edges:
        before.setdefault(edge.target, set()).add(edge.source)
        after.setdefault(edge.source, set()).add(edge.target)
    groups: dict[tuple[object, ...], list[GraphNode]] = {}
    for node in graph.nodes:
        place = (frozenset(before.get(node.name, ())), frozenset(after.get(node.name, ())), node.kind)
        is_alone = not graph.has_edges or place[0] == place[1] == frozenset()
        name = node.name if is_alone else _NUMBER.sub("", node.name) if are_alike else ""
        groups.setdefault((*place, name), []).append(node)
    many = [nodes for nodes in groups.values() if len(nodes) > _MOST_SIBLINGS]
    return _merge(graph, many)


def _fold_names(graph: Graph) -> Graph:
    groups: dict[tuple[str, str], list[GraphNode]] = {}
    for node in graph.nodes:
        groups.setdefault((_NUMBER.sub("", node.name), node.kind), []).append(node)
    return _merge(graph, [nodes for nodes in groups.values() if len(nodes) > 1])


def _merge(graph: Graph, groups: Sequence[Sequence[GraphNode]]) -> Graph:
    """Return a graph with one node in the place of each group."""
    taken = {node.name for node in graph.nodes}
    merged: dict[str, GraphNode] = {}
    for group in groups:
        one = _merged(group, taken)
        taken.add(one.name)
        merged |= {node.name: one for node in group}
    if not merged:
        return graph
    nodes = dict.fromkeys(merged.get(node.name, node).name for node in graph.nodes)
    by_name = {node.name: node for node in (*graph.nodes, *merged.values())}
    edges: dict[GraphEdge, None] = {}
    for edge in graph.edges:
        source, target = merged.get(edge.source), merged.get(edge.target)
        moved = msgspec.structs.replace(
            edge, source=source.name if source else edge.source, target=target.name if target else edge.target
        )
        if moved.source != moved.target:
            edges[moved] = None
    return msgspec.structs.replace(graph, nodes=[by_name[name] for name in nodes], edges=list(edges))


def _shared_start(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    length = next((place for place, each in enumerate(first) if last[place : place + 1] != each), len(first))
    return first[:length]


def _merged(group: Sequence[GraphNode], taken: set[str]) -> GraphNode:
    states: Counter[str] = Counter()
    for node in group:
        states.update(node.states if node.count > 1 else {node.state: 1} if node.state else {})
    shared = _shared_start([node.name for node in group])
    name = f"{shared}*" if len(shared) > 1 else f"{group[0].name} …"
    while name in taken:
        name += "*"
    count, conditions = sum(node.count for node in group), {node.when for node in group}
    when = conditions.pop() if len(conditions) == 1 else ""
    return msgspec.structs.replace(
        group[0], name=name, count=count, when=when, states=dict(states), state=worst_of(states), flow_id=""
    )
