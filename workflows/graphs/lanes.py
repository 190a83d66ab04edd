"""Lanes: what runs in a row and what runs side by side, and the edges that follow from it.

    Row = Lane, one after the other          Fork = Rows side by side, all of which follow what stands before

What must always hold: an edge leads from the last nodes of a part to the first ones of the part behind it; an
empty row of a fork, such as a condition without `else`, lets what stands before lead on.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from workflows.graphs.graph import GraphEdge


class Fork(NamedTuple):
    """Rows that run side by side."""

    rows: list[Row]


Lane: TypeAlias = "str | Fork"
Row: TypeAlias = "list[Lane]"


def connect(row: Row) -> list[GraphEdge]:
    """Return the edges of a row and of all in it, each once."""
    edges: dict[GraphEdge, None] = {}
    _lead(row, [], edges)
    return list(edges)


def _lead(row: Row, before: list[str], edges: dict[GraphEdge, None]) -> list[str]:
    """Lead from the nodes `before` through a row; return the nodes that lead on from it."""
    for lane in row:
        if isinstance(lane, str):
            edges.update(dict.fromkeys(GraphEdge(source, lane) for source in before))
            before = [lane]
        else:
            ends = [_lead(inner, before, edges) for inner in lane.rows]
            before = list(dict.fromkeys(name for end in ends for name in end))
    return before
