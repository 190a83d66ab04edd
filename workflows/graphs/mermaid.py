"""A graph as Mermaid text, which wikis, editors and code hosts draw.

What must always hold: a name is text, whatever it holds: it ends no label and begins no statement.
"""

from __future__ import annotations

from workflows.graphs.graph import Graph, GraphNode

_SHAPES = {
    "flow": ('[["', '"]]'),
    "wait": ('{{"', '"}}'),
    "sleep": ('(["', '"])'),
    "each": ('[/"', '"/]'),
    "emit": ('>"', '"]'),
    "place": ('("', '")'),
    "error_place": ('[/"', '"\\]'),
    "end": ('((("', '")))'),
}
_CLASSES = {
    "completed": ("completed", "fill:#dff3e6,stroke:#136c3a,color:#136c3a"),
    "active": ("active", "fill:#e2eaf9,stroke:#2a4a86,color:#2a4a86"),
    "stands_here": ("active", ""),
    "failed": ("failed", "fill:#fbe3e4,stroke:#a3161f,color:#a3161f"),
    "damaged": ("failed", ""),
    "unknown": ("failed", ""),
    "undo_failed": ("failed", ""),
    "undone": ("undone", "fill:#fcefd3,stroke:#7a4b00,color:#7a4b00"),
    "cancelled": ("undone", ""),
    "delayed": ("undone", ""),
}
"""The class of each state, and its style where the class is first named."""


def mermaid(graph: Graph) -> str:
    """Return a graph as the text of a Mermaid flowchart; one of a flow has the states of its nodes."""
    places = {node.name: f"n{place}" for place, node in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    if not graph.has_edges:
        lines.append("  %% nobody has told what follows what: no worker of this version was seen for 90 days")
    lines += [f"  {places[node.name]}{_shape(node)}" for node in graph.nodes]
    for edge in graph.edges:
        label = f'|"{_text(edge.label)}"|' if edge.label else ""
        arrow = "-.->" if edge.on_error else "-->"
        lines.append(f"  {places[edge.source]} {arrow}{label} {places[edge.target]}")
    used: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.state in _CLASSES:
            used.setdefault(_CLASSES[node.state][0], []).append(places[node.name])
    styles = dict(style for style in _CLASSES.values() if style[1])
    for name, members in used.items():
        lines += [f"  classDef {name} {styles[name]}", f"  class {','.join(members)} {name}"]
    return "\n".join(lines) + "\n"


def _shape(node: GraphNode) -> str:
    begin, end = _SHAPES.get(node.kind, ('["', '"]'))
    told = [node.name]
    if node.about and node.about != node.name:
        told.append(f"{'workflow' if node.kind == 'flow' else 'signal'} {node.about}")
    if node.when:
        told.append(f"if {node.when}")
    if node.is_start:
        told.append("start")
    if node.states:
        told.append(", ".join(f"{count} {_word(state)}" for state, count in node.states.items()))
    elif node.state:
        told.append(_word(node.state))
    elif node.count > 1:
        told.append(f"{node.count} of them")
    return f"{begin}{'<br>'.join(map(_text, told))}{end}"


def _word(state: str) -> str:
    return state.replace("_", " ")


def _text(text: str) -> str:
    """Return a text with all that could be markup as character codes."""
    return "".join(
        each if each.isalnum() or each in " -_.,*@()…" else f"#{ord(each)};"
        for each in text
        if each.isprintable()
    )
