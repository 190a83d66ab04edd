"""The metrics port of `eventbus worker`."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sys
import time
from collections.abc import Callable

import pytest
from drivers.program import Program
from typer.testing import Result

from eventbus import EventProvider

Start = Callable[..., Program]
Make = Callable[..., EventProvider]


def _ask(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def _wait(port: int, *lines: str) -> str:
    """Wait until the metrics have lines that begin so."""
    end = time.monotonic() + 240
    while True:
        _, _, text = _ask(port)
        if all(any(line.startswith(each) for line in text.splitlines()) for each in lines):
            return text
        assert time.monotonic() < end, text
        time.sleep(0.01)  # another process


async def test_prometheus_gets_what_a_worker_does_from_a_port_of_this_machine_alone(
    start: Start, make_provider: Make
) -> None:
    program = start("worker", "shop:provider", "--metrics-port", "0")
    said = json.loads(program.wait_for("answering metrics"))
    assert said["host"] == "127.0.0.1"
    program.wait_for("worker ready")
    async with make_provider() as provider:
        emission = provider.emit("double", 4)
        assert await emission == 8
    text = _wait(
        said["port"],
        'eventbus_job_attempts_total{eventbus_outcome="completed",eventbus_queue="event.double"',
        "messaging_process_duration_seconds_bucket{",
        'eventbus_queue_jobs{eventbus_queue="event.double"',
        "eventbus_worker_slots{",
        "process_cpu_seconds_total",
    )
    assert emission.job_id not in text
    code, kind, text = _ask(said["port"], Accept="application/openmetrics-text; version=1.0.0")
    assert (code, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert _ask(said["port"], "/")[0] == 404
    program.send(signal.SIGTERM)
    assert program.wait() == 0


def test_a_port_in_use_is_told_in_one_line(invoke: Callable[..., Result]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = invoke("worker", "shop:provider", "--metrics-port", port, "--burst")
    assert f"cannot answer metrics on 127.0.0.1 port {port}: Address already in use" in result.stderr
    assert "choose another --metrics-port or --metrics-host" in result.stderr
    assert (result.stderr.count("\n"), result.exit_code) == (1, 1)


def test_without_the_extra_the_command_says_what_to_install(
    invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    result = invoke("worker", "shop:provider", "--metrics-port", "0", "--burst")
    assert "pip install 'eventbus-workflows[prometheus]'" in result.stderr
    assert (result.stderr.count("\n"), result.exit_code) == (1, 2)


def test_an_sdk_that_the_program_has_set_is_left_alone(
    invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.metrics import _internal
    from opentelemetry.sdk.metrics import MeterProvider

    sdk = MeterProvider(shutdown_on_exit=False)
    monkeypatch.setattr(_internal, "_METER_PROVIDER", sdk)
    result = invoke("worker", "shop:provider", "--metrics-port", "0", "--burst")
    assert "the program has set one already (MeterProvider)" in result.stderr
    assert result.exit_code == 2
    assert _internal._METER_PROVIDER is sdk
