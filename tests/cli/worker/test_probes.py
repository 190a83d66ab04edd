"""The health port of `eventbus worker`."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers.program import Program
from drivers.servers import free_port
from typer.testing import Result

from eventbus import EventProvider

Start = Callable[..., Program]
Make = Callable[..., EventProvider]


class Port:
    """The health port of one worker."""

    def __init__(self, program: Program) -> None:
        self._port: int = json.loads(program.wait_for("answering probes"))["port"]

    def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        """Return status and body; None for an empty one."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if body else None
        finally:
            connection.close()

    def wait(self, path: str, code: int, **facts: Any) -> dict[str, Any]:
        """Wait until the path answers with the code and the facts."""
        end = time.monotonic() + 240
        while True:
            status, body = self.ask(path)
            if status == code and all(body[name] == value for name, value in facts.items()):
                return body
            assert time.monotonic() < end, f"{path} still answers {status}: {body}"
            time.sleep(0.01)  # another process


def test_a_worker_that_waits_for_its_server_is_alive_and_not_ready(start: Start) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    program = start("worker", "shop:provider", "--health-port", "0", "--url", url)
    port = Port(program)
    program.wait_for("server not there")
    assert port.ask("/livez") == (200, {"status": "the worker starts"})
    assert port.ask("/readyz") == (503, {"status": "the worker starts"})


async def test_a_worker_tells_how_it_is_until_it_has_drained(
    start: Start, make_provider: Make, tmp_path: Path
) -> None:
    program = start("worker", "shop:provider", "--health-port", "0", "--health-host", "127.0.0.1")
    port = Port(program)
    ready = port.wait("/readyz", 200)
    assert (ready["status"], ready["connected"], ready["running"]) == ("ok", True, 0)
    assert ready["answered"] < 10
    assert "event.double@audit" in ready["queues"]
    assert port.ask("/livez?verbose")[0] == 200
    assert port.ask("/readyz", "HEAD") == (200, None)
    assert port.ask("/metrics") == (404, {"paths": ["/livez", "/readyz"]})
    async with make_provider() as provider:
        await provider.emit("wait", str(tmp_path / "file"), reply=False)
        port.wait("/readyz", 200, running=1)
        program.send(signal.SIGTERM)
        unready = port.wait("/readyz", 503, status="it is draining")
        assert (unready["draining"], unready["running"]) == (True, 1)
        assert port.ask("/livez")[0] == 200
    (tmp_path / "file").touch()
    assert program.wait() == 0
    assert not [line for line in program.errors if "GET" in line or "Traceback" in line]


@pytest.mark.slow
async def test_it_answers_while_the_event_loop_is_blocked_and_past_hang_after_it_is_not_alive(
    start: Start, make_provider: Make, environment: dict[str, str], tmp_path: Path
) -> None:
    environment |= {"EVENTBUS_LEASE": "0.5", "EVENTBUS_HANG_AFTER": "1.5"}
    program = start("worker", "shop:provider", "--health-port", "0")
    port = Port(program)
    port.wait("/readyz", 200)
    async with make_provider() as provider:
        await provider.emit("freeze", str(tmp_path / "file"), reply=False)
        blocked = port.wait("/livez", 503)
        assert blocked["status"].startswith("the event loop has been blocked for ")
        assert blocked["lag"] >= 1.5  # rounded
        (tmp_path / "file").touch()
        assert port.wait("/livez", 200, status="ok")["lag"] < 1.5


def test_a_port_in_use_is_told_in_one_line(invoke: Callable[..., Result]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = invoke(
            "worker", "shop:provider", "--health-port", port, "--health-host", "127.0.0.1", "--burst"
        )
    assert f"cannot answer probes on 127.0.0.1 port {port}: Address already in use" in result.stderr
    assert "choose another --health-port" in result.stderr
    assert (result.stderr.count("\n"), result.exit_code) == (1, 1)


def test_a_host_that_is_none_is_told_too(invoke: Callable[..., Result]) -> None:
    words = ("--health-port", "0", "--health-host", "999.1.1.1")
    result = invoke("worker", "shop:provider", "--burst", *words)
    assert "cannot answer probes on 999.1.1.1 port 0" in result.stderr
    assert result.exit_code == 1


def test_the_port_is_free_again_after_the_command(invoke: Callable[..., Result]) -> None:
    port = str(free_port())
    for _ in range(2):
        result = invoke("worker", "shop:provider", "--health-port", port, "--burst")
        assert result.exit_code == 0, result.stderr
