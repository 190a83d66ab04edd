"""A port of a worker whose clients send a byte now and then: they hold few threads, and not for long."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from urllib.request import urlopen

import pytest

from eventbus.cli.http_port import HttpPort, HttpResponse
from eventbus.model import clock


def _answer(path: str, _: Mapping[str, str]) -> HttpResponse:
    return HttpResponse(200, "text/plain", path.encode())


def test_clients_that_drip_are_cut_off_and_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.monotonic
    ahead = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now() + ahead[0])
    before = threading.active_count()
    with HttpPort("127.0.0.1", 0, _answer, name="tests", option="--test") as port, ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port.port), 20)) for _ in range(60)
        ]
        closed = 0
        for each in clients:
            each.sendall(b"GET / HT")
        for each in reversed(clients):  # those who are too many are hung up on at once
            if closed == 60 - 32:
                break
            try:
                closed += each.recv(1) == b""
            except ConnectionResetError:
                closed += 1
        assert threading.active_count() - before <= 33
        ahead[0] = 10.0
        for each in clients[:32]:
            each.settimeout(60)
            try:
                assert each.recv(1) == b""  # the rest, by the time that all of a request may take
            except ConnectionResetError:
                pass
        with urlopen(f"http://127.0.0.1:{port.port}/livez", timeout=60) as answer:
            assert answer.read() == b"/livez"
