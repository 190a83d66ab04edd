"""Rough edges of requests: methods that change nothing, deep payloads, zones of other machines.

Very many things.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from eventbus import EventProvider

Open = Callable[..., Any]
TOKEN = "a-token-that-nobody-guesses"


async def test_only_a_post_of_an_own_page_ends_a_session(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, token=TOKEN)
    signed = await client.post("/sign-in", data={"token": TOKEN})
    assert signed.status_code == 303
    for method in ("OPTIONS", "PUT", "TRACE"):
        for path in ("/sign-out", "/sign-in"):
            answer = await client.request(method, path, headers={"origin": "https://evil.example"})
            assert (answer.status_code, "set-cookie" in answer.headers) == (405, False), (method, path)
            assert answer.headers["allow"] == "POST"
    assert (await client.get("/")).status_code == 200
    assert (await client.post("/sign-out")).status_code == 303


async def test_a_deep_payload_is_refused_with_a_reason(provider: EventProvider, open_dashboard: Open) -> None:
    client = open_dashboard(provider)
    await provider.pause("a")
    for depth, status in ((90, 200), (500, 422), (20_000, 422)):
        text = f'{{"event": "a", "payload": {"[" * depth}{"]" * depth}}}'
        answer = await client.post(
            "/api/v1/emissions", content=text, headers={"content-type": "application/json"}
        )
        assert answer.status_code == status, answer.text
        typed = await client.post("/events/a/emit", data={"payload": "[" * depth + "]" * depth})
        assert typed.status_code == (303 if status == 200 else 422)
    assert "nested" in answer.text or "recursion" in answer.text


async def test_the_page_of_a_schedule_whose_zone_is_not_known_here_says_so(
    provider: EventProvider, open_dashboard: Open, admin: Callable[..., Any], prefix: str
) -> None:
    await provider.schedules.add("a", id="nightly", cron="0 0 * * *", tz="Europe/Berlin")
    (key,) = [each for each in admin("KEYS", f"{prefix}:*") if each.endswith(":plan:nightly")]
    admin("SET", key, admin("GET", key).replace("Europe/Berlin", "Mars/Base"))
    client = open_dashboard(provider)
    page = await client.get("/schedules/nightly")
    assert (page.status_code, "Mars/Base" in page.text) == (200, True)
    told = (await client.get("/api/v1/schedules/nightly")).json()
    assert (told["following"], "Mars/Base" in told["note"]) == ([], True)
    assert (await client.act("/schedules/nightly/pause")).status_code == 200


async def test_slots_are_told_without_digits_that_nobody_needs(
    provider: EventProvider, open_dashboard: Open
) -> None:
    await provider.schedules.add("a", id="often", every="3s")
    client = open_dashboard(provider)
    following = (await client.get("/api/v1/schedules/often")).json()["following"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?\+00:00", slot) for slot in following)
    for path in ("/schedules", "/schedules/often"):
        assert "every 3 s" in (await client.get(path)).text


async def test_the_pages_of_a_schedule_that_nobody_handles_say_so_and_why_it_was_skipped(
    provider: EventProvider, make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    working = make_provider()
    working.on("handled")(lambda _: None)
    for event in ("handled", "forgotten"):
        working.schedules.every("0.1s", event, id=event, immediately=True)
    async with working, working.worker():
        report = await provider.schedules.get("forgotten").report()
        while not report.skipped:
            report = await provider.schedules.get("forgotten").report()
        page = (await client.get("/schedules")).text
        rows = dict(re.findall(r'<tr id="schedule-(\w+)">(.*?)</tr>', page, re.DOTALL))
        assert '<td class="number"><span class="bad">none</span></td>' in rows["forgotten"]
        assert (
            "skipped: the job of the slot before was open (overlap=skip), and no worker" in rows["forgotten"]
        )
        assert '<td class="number">1</td>' in rows["handled"]
        one = (await client.get("/schedules/forgotten")).text
        assert '<p class="why bad">no worker serves event.forgotten</p>' in one
        assert "<dt>workers</dt><dd>0</dd>" in one
        assert "<dt>skipped for</dt><dd>the job of the slot before was open" in one
        served = (await client.get("/schedules/handled")).text
        assert "<dt>workers</dt><dd>1</dd>" in served
        assert "no worker serves" not in served


async def test_schedules_come_in_pages_that_miss_none(provider: EventProvider, open_dashboard: Open) -> None:
    ids = {f"s{n}" for n in range(7)}
    for each in ids:
        await provider.schedules.add("a", id=each, cron="0 0 1 1 *")
    await provider.schedules.get("s3").pause("x")
    client, seen = open_dashboard(provider), list[str]()
    url: str | None = "/api/v1/schedules?limit=3"
    while url:
        answer = await client.get(url)
        seen += [each["id"] for each in answer.json()["schedules"]]
        link = answer.headers.get("link")
        url = re.findall(r"<(.*)>; rel=\"next\"", link)[0] if link else None
    assert (sorted(seen), seen[-1]) == (sorted(ids), "s3")
    page = (await client.get("/schedules?limit=3")).text
    assert page.count('<tr id="schedule-') == 3
    (following,) = re.findall(r'<a rel="next" href="([^"]+)"', page)
    assert (await client.get(following.replace("&amp;", "&"))).text.count('<tr id="schedule-') == 3
    assert (await client.get("/api/v1/schedules?cursor=no")).status_code == 422


async def test_very_many_queues_are_no_page_of_megabytes(
    provider: EventProvider, open_dashboard: Open, admin: Callable[..., Any], prefix: str
) -> None:
    await provider.pause("a")
    (served,) = [each for each in admin("KEYS", f"{prefix}:*") if each.endswith(":limited")]
    admin("SADD", served, *(f"event.q{n}" for n in range(600)))
    await provider.emit("q599", 1).enqueued()
    client = open_dashboard(provider)
    page = (await client.get("/")).text
    assert page.count('<tr id="queue-') == 500
    assert "101 more queues" in page
    assert "q599" in page  # the one with something to do
    assert len(json.loads((await client.get("/api/v1/queues")).text)["queues"]) == 601
