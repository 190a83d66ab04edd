"""An OpenTelemetry SDK for metrics, set for one test, and what it would export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.metrics import _internal
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, NumberDataPoint

__all__ = ["Meters"]


class Meters:
    """The metrics that were recorded since it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reader = InMemoryMetricReader()
        sdk = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        monkeypatch.setattr(_internal, "_METER_PROVIDER", sdk)
        assert metrics.get_meter_provider() is sdk

    def read(self) -> dict[str, Metric]:
        """Return what is exported now, by name."""
        data = self._reader.get_metrics_data()
        found: Iterator[Metric] = (
            metric
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        )
        return {metric.name: metric for metric in found}

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return the points of a metric: attributes, and the value or the count of a histogram."""
        metric = self.read().get(name)
        return [
            (dict(point.attributes or {}), point.value if isinstance(point, NumberDataPoint) else point.count)
            for point in (metric.data.data_points if metric is not None else ())
        ]

    def by(self, name: str, *attributes: str) -> dict[Any, Any]:
        """Return the points of a metric by these attributes: by the one value, or by a tuple."""
        return {
            given[attributes[0]]
            if len(attributes) == 1
            else tuple(given.get(each, "") for each in attributes): value
            for given, value in self.points(name)
        }
