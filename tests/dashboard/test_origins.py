"""Requests of foreign pages and to foreign names: the check 21 of the dashboard's acceptance, and what stands
on each answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider
from eventbus.dashboard import Actor
from eventbus.dashboard.api.table import ACTS

Open = Callable[..., Any]
TOKEN = "a-token-that-nobody-guesses"

_FOREIGN: list[dict[str, str]] = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"origin": "http://localhost.evil.example"},
    {"origin": "https://localhost"},
    {"origin": ""},
]


@pytest.mark.parametrize("headers", _FOREIGN, ids=str)
async def test_check_21_a_foreign_page_changes_nothing(
    provider: EventProvider, open_dashboard: Open, headers: dict[str, str]
) -> None:
    client = open_dashboard(provider)
    for act in ACTS:
        names = {
            "queue": "event.a",
            "job": "j",
            "flow": "f",
            "schedule": "s",
            "failure": "x",
            "operation": "o",
            "signal": "go",
        }
        path, form = act.path.format(**names), act.form.format(**names)
        sent = await client.request(act.method, f"/api/v1{path}", json={}, headers=headers)
        posted = await client.post(form, data={"reason": "x"}, headers=headers)
        assert (sent.status_code, posted.status_code) == (403, 403), path
    assert not (await provider.inspector.queues.controls("event.a"))[0].is_paused


async def test_check_21_a_request_that_names_no_page_is_refused_unless_it_has_the_token(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, sign_in=lambda _request: Actor("ada"), token=TOKEN)
    del client.headers["origin"]
    assert (await client.act("/queues/event.a/pause")).status_code == 403
    headers = {"authorization": f"Bearer {TOKEN}"}
    answer = await client.post("/api/v1/queues/event.a/pause", json={}, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("origin", "headers"),
    [
        ("https://ops.example.com", {"sec-fetch-site": "same-origin"}),
        ("http://localhost:8765", {"origin": "http://localhost:8765"}),
        ("http://intranet", {"origin": "http://intranet"}),
    ],
)
async def test_check_21_our_own_pages_act_over_https_loopback_and_intranet(
    provider: EventProvider, open_dashboard: Open, origin: str, headers: dict[str, str]
) -> None:
    client = open_dashboard(provider, sign_in=lambda _request: Actor("ada"))
    client.base_url = origin
    del client.headers["origin"]
    answer = await client.post("/queues/event.a/pause", data={"reason": "x"}, headers=headers)
    assert answer.status_code == 303


async def test_check_21_a_name_of_somebody_else_that_leads_here_is_refused(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1.evil.example"):
        assert (await client.get("/", headers={"host": host})).status_code == 400, host
    for host in ("localhost:1234", "127.0.0.1", "[::1]:8765", "LOCALHOST"):
        assert (await client.get("/", headers={"host": host})).status_code == 200, host
    named = open_dashboard(provider, token=TOKEN, allowed_hosts=["ops.example.com"])
    assert (await named.get("/sign-in")).status_code == 400
    assert (await named.get("/sign-in", headers={"host": "ops.example.com:8443"})).status_code == 200


async def test_check_4_each_answer_has_the_headers_also_of_an_error(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, frame_ancestors="https://portal.example.com")
    page = await client.get("/")
    asset = page.text.partition('src="')[2].partition('"')[0]
    answers = [
        page,
        await client.get(asset),
        await client.get("/static/nothing.js"),
        await client.get("/nothing"),
        await client.get("/", headers={"host": "evil.example"}),
        await client.post("/queues/event.a/pause", headers={"origin": "https://evil.example"}),
        await client.get("/api/v1/jobs/unknown"),
        await client.put("/api/v1/queues"),
        await client.get("/find", params={"q": "unknown"}),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors https://portal.example.com" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers
        is_kept = answer is answers[1]
        assert ("immutable" if is_kept else "no-store") in answer.headers["cache-control"]


async def test_a_form_cannot_post_to_the_api_nor_json_to_a_form(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    assert (await client.post("/api/v1/queues/event.a/pause", data={"reason": "x"})).status_code == 415
    plain = {"content-type": "text/plain"}
    assert (await client.post("/api/v1/queues/event.a/pause", content="{}", headers=plain)).status_code == 415
    assert (await client.post("/api/v1/queues/event.a/pause")).status_code == 415
    assert (await client.post("/queues/event.a/pause", json={})).status_code == 415


async def test_a_large_body_is_refused(provider: EventProvider, open_dashboard: Open) -> None:
    client = open_dashboard(provider)
    answer = await client.act("/queues/event.a/pause", reason="x" * (2 * 1024 * 1024))
    assert answer.status_code == 413
    assert (await client.get("/api/v1/flows", params={"state": "x" * 9000})).status_code == 413
