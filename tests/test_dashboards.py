"""What `docs/` gives to Prometheus, Grafana and KEDA names only metrics and labels that a worker's metrics
port has.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY

from eventbus.telemetry.gauge_board import GaugeBoard, boards
from eventbus.telemetry.metrics import METRICS, TALLIED, Instruments
from workflows.distributed.flow_consumer import FLOWS_ENDED

_DOCS = Path(__file__).parent.parent / "docs"
_OWN = {"instance", "job", "le"}
"""Labels that Prometheus sets."""
_NAME = re.compile(r"\b((?:eventbus|messaging|workflows)_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)(?:=~|!~|!=|=)\"")
_BY = re.compile(r"by \(([^)]*)\)")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Each name that the port shows, with its labels: every metric is recorded once with all its
    attributes.
    """
    reader, board = PrometheusMetricReader(), GaugeBoard()
    sdk = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    made: Any = Instruments(sdk.get_meter("test"))
    boards[board] = None
    known = {metric.name: metric for metric in (*METRICS.values(), FLOWS_ENDED)}
    for metric in known.values():
        attributes = dict.fromkeys(metric.attributes, "x")
        if metric.kind == "gauge":
            board.show(metric.name, [(1, attributes)])
    recorders = {each.name: each for each in vars(made).values() if getattr(each, "name", "") in known}
    for name in TALLIED:
        made.tally(name, dict.fromkeys(known[name].attributes, "x")).count += 1
    recorders[FLOWS_ENDED.name] = made.counter(FLOWS_ENDED)
    for name, instrument in recorders.items():
        record = instrument.add if hasattr(instrument, "add") else instrument.record
        record(1, dict.fromkeys(known[name].attributes, "x"))
    samples = [sample for family in REGISTRY.collect() for sample in family.samples]
    del boards[board]
    reader.shutdown()
    names: dict[str, set[str]] = {}
    for sample in samples:
        names.setdefault(sample.name, set()).update(sample.labels)
    return {name: labels for name, labels in names.items() if _NAME.fullmatch(name)}


def _check(expression: str, exported: dict[str, set[str]]) -> set[str]:
    """Check the names and labels of an expression; return the names."""
    text = re.sub(r"\[\$?\w+\]", "", expression)
    grouped = {label.strip() for group in _BY.findall(text) for label in group.split(",")}
    metrics = [found for found in _NAME.findall(_BY.sub("", text)) if not _is_label(found[0], exported)]
    assert metrics, expression
    labels = set[str]()
    for name, selector in metrics:
        assert name in exported, f"{name} in {expression}"
        assert {*_LABEL.findall(selector)} <= exported[name] | _OWN, expression
        labels |= exported[name]
    assert grouped <= labels | _OWN, expression
    return {name for name, _ in metrics}


def _is_label(name: str, exported: dict[str, set[str]]) -> bool:
    return any(name in labels for labels in exported.values())


def test_every_metric_has_a_name_for_prometheus(exported: dict[str, set[str]]) -> None:
    starts = {metric.name.replace(".", "_") for metric in (*METRICS.values(), FLOWS_ENDED)}
    assert {start for start in starts if not any(name.startswith(start) for name in exported)} == set()


def test_the_grafana_dashboard_asks_for_metrics_that_there_are(exported: dict[str, set[str]]) -> None:
    board = json.loads((_DOCS / "grafana.json").read_text())
    targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(targets) > 20
    asked = set[str]().union(*(_check(target["expr"], exported) for target in targets))
    (query,) = [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
    assert label in exported[metric]
    # And it leaves no metric out.
    bases = {metric.name.replace(".", "_") for metric in (*METRICS.values(), FLOWS_ENDED)}
    assert {base for base in bases if not any(name.startswith(base) for name in asked)} == set()
    shown = {label for each in targets for label in re.findall(r"\{\{(\w+)\}\}", each["legendFormat"])}
    assert shown <= set[str]().union(*exported.values()) | _OWN


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    panels = json.loads((_DOCS / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_alerts_and_the_scaler_ask_for_metrics_that_there_are(exported: dict[str, set[str]]) -> None:
    text = (_DOCS / "telemetry.md").read_text()
    alerts = text.partition("| alert | expression |")[2].partition("\n\n")[0].splitlines()[2:]
    expressions = [row.split("|", 2)[2].strip(" |`") for row in alerts]
    assert len(expressions) == 7
    (scaler,) = re.findall(r"^ +query: (.+)$", text, re.MULTILINE)
    for expression in [*expressions, scaler]:
        _check(expression, exported)
