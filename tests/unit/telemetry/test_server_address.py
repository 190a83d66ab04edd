"""The server's address as attributes: what is told of a URL, and that no password is."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.telemetry.server_address import server_attributes


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("redis://queue.example:6380/2", "queue.example", 6380),
        ("redis://queue.example", "queue.example", 6379),
        ("rediss://user:secret@queue.example:7000", "queue.example", 7000),
        ("redis://:pa/ss@queue.example", "queue.example", 6379),
        ("redis://user:12/34@queue.example", "queue.example", 6379),
        ("redis://[::1]:6380", "::1", 6380),
        ("queue.example:6380", "queue.example", 6380),
        ("unix:///run/redis.sock?db=1", "/run/redis.sock", None),
        ("unix:/run/redis.sock", "/run/redis.sock", None),
        ("embedded:./data", "./data", None),
    ],
)
def test_an_address_has_host_and_port_or_a_path(url: str, host: str, port: int | None) -> None:
    found: dict[str, Any] = {"server.address": host}
    if port is not None:
        found["server.port"] = port
    assert server_attributes(url) == found


@pytest.mark.parametrize("url", ["", "memory:", "redis://", "redis://a:b:c/d", "redis://host:port"])
def test_what_is_no_address_tells_nothing(url: str) -> None:
    assert server_attributes(url) == {}
