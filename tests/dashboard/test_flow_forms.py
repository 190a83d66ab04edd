"""The forms in which the API tells of flows have the fields of the reports that they are converted from, with
the same defaults.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from eventbus.dashboard.desk.flows.graph import EdgeLine, GraphView, NodeLine
from eventbus.dashboard.desk.flows.listing import FlowLine, VersionLine
from workflows import FlowSummary
from workflows.graphs.graph import Graph, GraphEdge, GraphNode
from workflows.records.report import FlowVersion


@pytest.mark.parametrize(
    ("form", "report", "own"),
    [
        (FlowLine, FlowSummary, set[str]()),
        (VersionLine, FlowVersion, {"is_safe"}),  # the dashboard judges that
        (NodeLine, GraphNode, set[str]()),
        (EdgeLine, GraphEdge, set[str]()),
    ],
)
def test_a_form_has_the_fields_of_its_report(
    form: type[msgspec.Struct], report: type[msgspec.Struct], own: set[str]
) -> None:
    told, known = _fields(form), _fields(report)
    assert {name: default for name, default in told.items() if name not in own} == known


def test_the_form_of_a_graph_has_all_its_fields() -> None:
    assert set(_fields(GraphView)) == set(_fields(Graph))


def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        field.name: field.default_factory if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(struct)
    }
