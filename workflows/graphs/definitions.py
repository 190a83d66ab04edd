"""The graphs of definitions: of step graphs, pipelines among them, of durable functions, and of state
machines (`graphs.places`).

A step graph is known whole. Of a durable function its code is known, so its graph has the calls in the order
of the code: a loop is drawn as one pass, the branches of a condition side by side, as the calls of a group
are. What another function calls is not seen.

What must always hold: the same definition has the same graph in every process. No definition makes this
raise.
"""

from __future__ import annotations

from typing import Any

from workflows.definition.checks.signature import name_of
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.functions.definition import Durable
from workflows.graphs.calls import calls_of
from workflows.graphs.graph import Graph, GraphEdge, GraphNode
from workflows.graphs.lanes import connect
from workflows.graphs.places import graph_of_machine
from workflows.machines.definition import MachineDefinition


def graph_of(definition: AnyDefinition) -> Graph:
    """Return the graph of a definition of any kind."""
    if isinstance(definition, MachineDefinition):
        return graph_of_machine(definition)
    if isinstance(definition, Durable):
        nodes, lanes = calls_of(definition.function)
        edges = connect(lanes)
        return Graph(
            workflow=definition.name,
            version=definition.version,
            nodes=nodes,
            edges=edges,
            signals=None if definition.signals is None else list(definition.signals),
        )
    assert isinstance(definition, Workflow)  # noqa: S101  (there are three kinds)
    steps = [definition.steps[name] for name, _ in definition.plan.nodes]
    return Graph(
        workflow=definition.name,
        version=definition.version,
        nodes=[_node_of(step) for step in steps],
        edges=[GraphEdge(need, step.name) for step in steps for need in step.after],
        signals=list(definition.signals),
    )


def _node_of(step: Step[Any, Any]) -> GraphNode:
    when = "" if step.when is None else _condition(name_of(step.when))
    if step.workflow is not None:
        return GraphNode(name=step.name, kind="flow", about=step.workflow.name, when=when)
    if step.pause is not None:
        kind = "sleep" if step.pause.signal is None else "wait"
        return GraphNode(name=step.name, kind=kind, about=step.pause.name, when=when)
    return GraphNode(name=step.name, kind="each" if step.is_each else "step", when=when)


def _condition(name: str) -> str:
    """Return what a condition is called; a lambda has no name."""
    return name if name.isidentifier() else "a condition"
