"""The health port of a worker whose server fails: what an orchestrator would see."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from harness.backends import Backend, free_port
from harness.conditions import until, wait_until
from harness.journal import Journal
from harness.programs import Program

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

pytestmark = pytest.mark.servers("one")


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def wait_for(port: int, path: str, code: int, worker: Program) -> dict[str, Any]:
    """Wait until the path answers with the code; returns the body."""
    wait_until(f"{path} answers {code}", lambda: ask(port, path)[0] == code, story=worker.story)
    return ask(port, path)[1]


@pytest.mark.long
def test_a_worker_whose_server_is_gone_is_unready_alive_and_ready_again(
    server: Backend, start_worker: Run
) -> None:
    port = free_port()
    worker = start_worker(server, "--health-port", str(port), "--health-host", "127.0.0.1")
    assert wait_for(port, "readyz", 200, worker)["connected"] is True
    server.kill()
    unready = wait_for(port, "readyz", 503, worker)
    assert unready["status"].startswith("the server has not answered it for 1")
    assert ask(port, "livez")[0] == 200
    server.start()
    wait_for(port, "readyz", 200, worker)
    server.pause()  # connections stay, nothing is answered
    wait_for(port, "readyz", 503, worker)
    assert ask(port, "livez")[0] == 200
    server.resume()
    wait_for(port, "readyz", 200, worker)
    worker.send(signal.SIGTERM)
    assert worker.wait_ended() == 0


async def test_a_worker_that_drains_is_unready_and_alive_to_its_end(
    server: Backend, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    port = free_port()
    worker = start_worker(server, "--health-port", str(port), "--grace", "1h")
    async with EventProvider(server.url) as provider:
        emission = provider.emit("hold", {"gate": "open"})
        await until("it runs", lambda: len(journal.read("began")) == 1, story=worker.story)
        worker.send(signal.SIGTERM)
        assert wait_for(port, "readyz", 503, worker)["status"] == "it is draining"
        assert ask(port, "livez")[1]["running"] == 1
        gates("open")
        assert (await emission)["pid"] == worker.pid
    assert worker.wait_ended() == 0
    with pytest.raises(urllib.error.URLError):
        ask(port, "livez")
