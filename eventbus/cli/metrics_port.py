"""The metrics port of a worker: it answers `/metrics` in the formats of Prometheus.

It sets OpenTelemetry's SDK for metrics in this process, with the exporter for Prometheus. A program that sets
an SDK of its own exports its metrics there.

What must always hold: an answer has names, counts and times, and nothing of a job; no client of the port can
make the worker wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import structlog

from eventbus.cli.failures import CommandError
from eventbus.cli.http_port import HttpPort, HttpResponse

_log = structlog.get_logger("eventbus.worker")

_PATH = "/metrics"


class MetricsPort(HttpPort):
    """Answers a Prometheus server on a port inside its block."""

    def __init__(self, host: str, port: int) -> None:
        """Listen at once, and set the SDK. Raises CommandError if either is not possible."""
        set_sdk = _find_sdk()
        super().__init__(host, port, _answer, name="metrics", option="--metrics")
        set_sdk()  # last, because a process can do it only once

    def __enter__(self) -> Self:
        super().__enter__()
        _log.info("answering metrics", host=self.host, port=self.port)
        return self


def _find_sdk() -> Callable[[], None]:
    """Return a function that lets this process record metrics, and Prometheus' own library collect them."""
    try:
        from opentelemetry import metrics  # noqa: PLC0415  (only who asks for it pays for the import)
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    except ImportError as error:
        raise CommandError(
            f"--metrics-port needs OpenTelemetry's exporter for Prometheus ({error}); "
            "install it: pip install 'eventbus-workflows[prometheus]'",
            exit_code=2,
        ) from error
    known = metrics.get_meter_provider()
    if type(known).__name__ != "_ProxyMeterProvider":
        raise CommandError(
            f"--metrics-port sets OpenTelemetry's SDK for metrics, and the program has set one already "
            f"({type(known).__name__}); leave --metrics-port out and add a PrometheusMetricReader there",
            exit_code=2,
        )
    return lambda: metrics.set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()]))


def _answer(path: str, headers: Mapping[str, str]) -> HttpResponse:
    from prometheus_client import REGISTRY  # noqa: PLC0415  (as above)
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415

    if path != _PATH:
        return HttpResponse(404, "text/plain; charset=utf-8", f"metrics are at {_PATH}\n".encode())
    encode, content_type = choose_encoder(headers.get("Accept", ""))
    return HttpResponse(200, content_type, encode(REGISTRY))
