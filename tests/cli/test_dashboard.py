"""`eventbus dashboard` and `eventbus demo --dashboard`: the checks 1 and 15 of the dashboard's acceptance,
over HTTP.
"""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from drivers.program import Program
from typer.testing import Result

Start = Callable[..., Program]


@contextmanager
def _open(program: Program) -> Generator[tuple[httpx2.Client, str]]:
    """Open the link that the program prints; give a browser that is signed in, and the link."""
    url = re.findall(r"http\S+", program.wait_for("/sign-in?code="))[0]
    with httpx2.Client(base_url=url.partition("/sign-in")[0], timeout=60) as client:
        assert client.get(url).status_code == 303
        yield client, url


@pytest.mark.slow
def test_check_1_it_prints_one_link_that_signs_in_once_and_stands_in_no_log(start: Start) -> None:
    program = start("dashboard", "--port", "0")
    with _open(program) as (client, url):
        page = client.get("/")
        assert page.status_code == 200
        assert "Queues" in page.text
        assert httpx2.get(url).status_code == 401
        assert client.get("/", headers={"host": "evil.example"}).status_code == 400
        assert re.match(r"http://127\.0\.0\.1:\d+/", url)
        changed = client.post(
            "/api/v1/queues/event.a/pause", json={}, headers={"sec-fetch-site": "same-origin"}
        )
        assert changed.json()["changed"] is True
    program.send(signal.SIGTERM)
    assert program.wait() == 0
    assert len(program.output) == 1
    said = "\n".join(program.errors)
    assert "dashboard sign-in" in said
    assert "dashboard action" in said
    assert url.rpartition("=")[2] not in said


@pytest.mark.slow
def test_check_15_it_ends_while_a_page_is_open(start: Start) -> None:
    program = start("dashboard", "--port", "0")
    with _open(program) as (client, url):
        address = httpx2.URL(url)
        # A connection that is kept, and a request that never gets to its end.
        with socket.create_connection((address.host, address.port or 80)) as half:
            half.sendall(b"POST /sign-in HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n")
            assert client.get("/").status_code == 200
            program.send(signal.SIGTERM)
            assert program.wait() == 0


@pytest.mark.slow
def test_a_lasting_token_is_typed_and_read_only_changes_nothing(start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-nobody-guesses\n")
    program = start(
        "dashboard", "--port", "0", "--token-file", str(token), "--read-only", "--allowed-host", "ops.local"
    )
    base = program.wait_for("http://").strip()
    with httpx2.Client(base_url=base, timeout=60) as client:
        assert client.get("/").headers["location"] == "/sign-in"
        assert client.get("/sign-in", headers={"host": "ops.local"}).status_code == 200
        own = {"sec-fetch-site": "same-origin"}
        data = {"token": "a-token-that-nobody-guesses"}
        assert client.post("/sign-in", data=data, headers=own).status_code == 303
        assert "read-only" in client.get("/").text
        assert client.post("/api/v1/queues/event.a/pause", json={}, headers=own).status_code == 403


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "others can reach 0.0.0.0, so a lasting token is needed"),
        (["--host", "192.0.2.1"], "give --token-file FILE"),
        (["--token-file", "missing"], "missing: No such file"),
        (["--token-file", "empty"], "empty is empty"),
        (["--token-file", "short"], "can be guessed"),
        (["--public-origin", "ops.example.com"], "expected public_origin as https://HOST"),
        (["--base-path", "ops"], "expected base_path as /a/path"),
    ],
)
def test_what_would_open_it_is_refused(
    invoke: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "short").write_text("short")
    ran = invoke("dashboard", "--port", "0", *words)
    assert ran.exit_code == (1 if "missing" in words else 2)
    assert said in ran.stderr


def test_a_port_that_is_taken_is_named(invoke: Callable[..., Result]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = invoke("dashboard", "--port", str(port))
    assert ran.exit_code == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in ran.stderr


@pytest.mark.slow
def test_the_demo_shows_queues_and_a_flow_with_a_rollback(start: Start) -> None:
    program = start("demo", "--dashboard")
    with _open(program) as (client, _):
        undone: list[dict[str, Any]] = []
        while not undone:
            assert program.process.poll() is None
            found = client.get("/api/v1/flows").json()["flows"]
            undone = [flow for flow in found if flow["rollback"] == "complete"]
        page = client.get(f"/flows/{undone[0]['flow_id']}").text
        assert page.index("undone</span> charge") < page.index("undone</span> reserve")
        listed = {queue["queue"] for queue in client.get("/api/v1/queues").json()["queues"]}
        assert {"event.order.placed", "event.order.placed@billing", "workflow.checkout"} <= listed
        assert "standing-order" in client.get("/schedules").text
    program.send(signal.SIGINT)
    assert program.wait() == 0
    assert program.errors == []
