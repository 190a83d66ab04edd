"""The page of the server: what it says, what it does not say, and who sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventbus import EventProvider
from eventbus.dashboard import Actor

Open = Callable[..., Any]


async def test_the_server_tells_what_it_is_and_what_the_checks_find(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    await provider.emit("paid", 1, reply=False).enqueued()
    told = (await client.get("/api/v1/server")).json()
    assert told["server"]["product"] == "Valkey"
    assert told["server"]["policy"] == "noeviction"
    assert told["server"]["memory"] > 0
    assert told["server"]["clients"] > 0
    assert told["server"]["keys"]["job"] == 1
    assert told["server"]["keys_are_all"]
    subjects = {finding["subject"]: finding["level"] for finding in told["findings"]}
    assert subjects["rights"] == "ok"
    assert subjects["queues"] == "warning", "a job waits that nobody serves"
    page = (await client.get("/server")).text
    assert "nobody serves" in page
    assert "noeviction" in page


async def test_check_4_the_server_page_names_no_address(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    address = provider._life.running("test").store.address
    for path in ("/server", "/api/v1/server"):
        text = (await client.get(path)).text
        assert "answers within" in text
        for part in (address, provider.settings.url, "127.0.0.1", "unix:", "/tmp"):
            assert part not in text, part


async def test_the_server_is_shown_only_to_who_may_see_it_and_findings_only_to_who_sees_the_queues(
    provider: EventProvider, open_dashboard: Open
) -> None:
    await provider.emit("payout", 1, reply=False).enqueued()
    hidden = open_dashboard(provider, actions={"*": {"server.read": False}})
    assert (await hidden.get("/server")).status_code == 404
    assert (await hidden.get("/api/v1/server")).status_code == 404
    actions = {"payout": {"queue.read": "admin"}}
    viewer = open_dashboard(provider, sign_in=lambda _: Actor("viewer"), actions=actions)
    assert "payout" not in (await viewer.get("/server")).text
