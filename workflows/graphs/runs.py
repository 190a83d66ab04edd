"""The graph of a flow: that of its definition with the states of its report, the calls that a durable
function has made, or the places of a state machine with the one where it stands (`graphs.places`).

A call of a durable function has a position, so its graph follows from the report alone: "2" follows "1",
"4.0.1" is the second call in the first branch of "4". The calls of a group stand in the code one after the
other, so those that overlapped in time are drawn side by side.

What must always hold: each step of the report is a node, and has the state that the report shows; what the
definition names and the report does not is waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from workflows.graphs.graph import Graph, GraphNode
from workflows.graphs.lanes import Fork, Row, connect
from workflows.graphs.places import graph_of_standing
from workflows.records.report import FlowReport, FlowTree, StepReport

_OVER = ("completed", "failed", "cancelled")


def graph_of_run(tree: FlowTree, definition: Graph | None) -> Graph:
    """Return the graph of a flow; `definition` is that of its version, None if nobody knows it."""
    report = tree.report
    if report.machine is not None:
        return graph_of_standing(report, report.machine, definition)
    if has_positions(report):
        return _graph_of_calls(tree)
    known = [] if definition is None else definition.nodes
    names, states = {node.name for node in known}, states_of(report)
    unknown = [GraphNode(name=name) for name in report.steps if name not in names]
    nodes = [_with_state(node, tree, states) for node in (*known, *unknown)]
    return Graph(
        workflow=report.workflow,
        version=report.version,
        nodes=nodes,
        edges=[] if definition is None else definition.edges,
        has_edges=definition is not None,
        flow_id=report.flow_id,
        state=report.state,
        parts=len(nodes),
    )


def has_positions(report: FlowReport) -> bool:
    """Tell whether the steps of a report are calls of a durable function, each named with its position."""
    return report.machine is None and any("@" in name for name in report.steps)


def states_of(report: FlowReport) -> dict[str, str]:
    """Return the state of each step with what became of its rollback, also of one of its items or nested
    steps.
    """
    states: dict[str, str] = {name: step.state for name, step in report.steps.items()}
    for undone in report.rollbacks:
        name = undone.step.partition("/")[0].partition("[")[0]
        if name in states and states[name] != "undo_failed":
            states[name] = "undo_failed" if undone.error else "undone"
    return states


def _with_state(node: GraphNode, tree: FlowTree, states: Mapping[str, str]) -> GraphNode:
    report, flows = tree.report, tree.nested.get(node.name, ())
    step = report.steps.get(node.name)
    if step is None:
        return msgspec.structs.replace(node, state="cancelled" if report.state in _OVER else "waiting")
    kind = "flow" if flows and node.kind == "step" else node.kind
    return msgspec.structs.replace(
        node,
        kind=kind,
        about=node.about or (flows[-1].report.workflow if flows else ""),
        state=states[node.name],
        flow_id=flows[-1].report.flow_id if flows else "",
        count=max(sum(step.items.values()), 1),
        states=step.items,
    )


def _graph_of_calls(tree: FlowTree) -> Graph:
    report = tree.report
    states = states_of(report)
    calls = {_place_of(name): step for name, step in report.steps.items()}
    nodes = [_with_state(_node_of(step), tree, states) for step in calls.values()]
    return Graph(
        workflow=report.workflow,
        version=report.version,
        nodes=nodes,
        edges=connect(_row_of(calls)),
        flow_id=report.flow_id,
        state=report.state,
        parts=len(nodes),
    )


def _node_of(step: StepReport) -> GraphNode:
    return GraphNode(name=step.step, kind="sleep" if step.step.startswith("@") else "step")


def _place_of(name: str) -> tuple[int, ...]:
    place = name.rpartition("@")[2].split(".")
    return tuple(int(each) if each.isdecimal() else 0 for each in place)


def _row_of(calls: Mapping[tuple[int, ...], StepReport], depth: int = 0) -> Row:
    """Return the calls of one piece of code, whose positions differ from the number at `depth` on."""
    row: Row = []
    aside: list[StepReport] = []
    for number in sorted({place[depth] for place in calls}):
        inner = {place: step for place, step in calls.items() if place[depth] == number}
        own = [step for place, step in inner.items() if len(place) == depth + 1]
        parts = {place: step for place, step in inner.items() if len(place) > depth + 1}
        if aside and (parts or not own or not _overlaps(own[0], aside)):
            row.append(_side_by_side(aside))
            aside = []
        aside += own
        if parts:
            if aside:
                row.append(_side_by_side(aside))
                aside = []
            row.append(_fork_of(parts, depth + 1))
    return [*row, _side_by_side(aside)] if aside else row


def _fork_of(parts: Mapping[tuple[int, ...], StepReport], depth: int) -> Fork:
    """Return the branches of a group, or the items of a map, which have a number and no calls of
    their own.
    """
    rows: list[Row] = []
    for number in sorted({place[depth] for place in parts}):
        branch = {place: step for place, step in parts.items() if place[depth] == number}
        rows.append(
            [
                *(step.step for place, step in branch.items() if len(place) == depth + 1),
                *_row_of(
                    {place: step for place, step in branch.items() if len(place) > depth + 1}, depth + 1
                ),
            ]
        )
    return Fork(rows)


def _overlaps(step: StepReport, others: Sequence[StepReport]) -> bool:
    ends = [other.ended_ms for other in others if other.ended_ms]
    return bool(step.started_ms) and (not ends or step.started_ms < min(ends))


def _side_by_side(steps: Sequence[StepReport]) -> str | Fork:
    return steps[0].step if len(steps) == 1 else Fork([[step.step] for step in steps])
