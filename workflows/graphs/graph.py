"""A graph: the parts of a workflow as nodes, and as edges what follows what. Definitions and flows have the
same one.

    definition --graph_of--> Graph --graph_of_run, with a report--> Graph with states --fold--> Graph that can
    be drawn

Not here: drawing it (`graphs.mermaid`, and the script of the dashboard).

What must always hold: the names of the nodes of one graph differ; an edge names nodes of its own graph. A new
kind of definition gives `nodes` and `edges`, and all that draws can draw it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

MOST_BYTES = 256 << 10
"""The JSON of a larger definition is not kept in the server."""

NodeKind: TypeAlias = Literal["step", "each", "flow", "wait", "sleep", "emit", "place", "error_place", "end"]


class GraphNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part. `about` is the workflow that a `flow` runs, or the signal of a `wait`. `when` names the
    condition of a step that may
    be skipped.

    In a flow it has a `state`: that of the step, or `undone` or `undo_failed` if a rollback ran; the place
    where a machine stands is `failed` with an error, `stands_here` without one, and at the end it has the
    state of the flow. `flow_id` is the flow that the part started. A node that stands for several parts, or
    for the items of a list, has their `count`, and how many of them are in each state; its own state is the
    one that needs attention most. The places of a state machine are nodes; it begins at the one that
    `is_start`.
    """

    name: str
    kind: NodeKind = "step"
    about: str = ""
    when: str = ""
    state: str = ""
    flow_id: str = ""
    count: int = 1
    states: dict[str, int] = {}
    is_start: bool = False


class GraphEdge(msgspec.Struct, frozen=True, omit_defaults=True):
    """`target` follows `source`; `label` says when, where that is not always, and `on_error` that a failure
    leads there.
    """

    source: str
    target: str
    label: str = ""
    on_error: bool = False


class Graph(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The graph of a definition, or with `flow_id` of one flow, which has a `state`.

    `signals` names those that it declares, None where any is taken or a worker of an older release told the
    graph. `has_edges` is False where nobody has told what follows what. `parts` is how many nodes there were
    before some were folded into one.
    """

    workflow: str
    version: str = ""
    nodes: list[GraphNode] = []
    edges: list[GraphEdge] = []
    has_edges: bool = True
    flow_id: str = ""
    state: str = ""
    parts: int = 0
    signals: list[str] | None = None


def encode_graph(graph: Graph) -> str:
    """Return the graph of a definition as JSON; empty if it is too large to be kept."""
    text = msgspec.json.encode(graph).decode()
    return text if len(text) <= MOST_BYTES else ""


def decode_graph(text: str) -> Graph | None:
    """Return a graph from its JSON; None for a text that is none, because it comes from any release of a
    worker.
    """
    try:
        return msgspec.json.decode(text, type=Graph)
    except (msgspec.MsgspecError, UnicodeError):
        return None
